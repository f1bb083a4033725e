#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Are the manifests that `--launch-to` writes what Kubernetes' API asks for?

  tests/manifests.py FOLDER

Names, selectors, ports and volumes are held against each other. Types, required and unknown fields are held against the API's
published schema where Debian's python3-kubernetes is installed; a line says so where it is not."""
import importlib.util, json, os, pathlib, re, sys

if importlib.util.find_spec("kubernetes") is None and sys.executable != "/usr/bin/python3" and os.path.exists("/usr/bin/python3"):
    os.execv("/usr/bin/python3", ["/usr/bin/python3", *sys.argv])
try:
    from kubernetes import client
except ImportError:
    client = None
    print("skipped: manifests against the API's schema (python3-kubernetes is not installed)")


def hold_against_schema(value, kind, place):
    """`kind` as the API's client names types: V1Container, list[V1Volume], dict(str, str), int."""
    nested = re.fullmatch(r"(list|dict)[\[(](?:str, )?(.*)[\])]", kind)
    if nested:
        assert isinstance(value, list if nested[1] == "list" else dict), f"{place}: not a {nested[1]}"
        for key, one in enumerate(value) if nested[1] == "list" else value.items():
            hold_against_schema(one, nested[2], f"{place}/{key}")
    elif hasattr(client, kind):
        model = getattr(client, kind)
        fields = {name: kind for kind, name in model.attribute_map.items()}
        assert set(value) <= set(fields), f"{place}: no fields of {kind}: {set(value) - set(fields)}"
        # The client checks that required fields are there, and values of enumerations.
        model(**{fields[name]: one for name, one in value.items()})
        for name, one in value.items():
            hold_against_schema(one, model.openapi_types[fields[name]], f"{place}/{name}")
    elif kind != "object":  # an int or a text: ports
        assert isinstance(value, {"str": str, "int": int, "bool": bool, "float": float}[kind]), f"{place}: {value!r} is no {kind}"


ports = set()
files = sorted(pathlib.Path(sys.argv[1]).glob("*.json"))
for file in files:
    manifest = json.loads(file.read_text())
    assert (manifest["apiVersion"], manifest["kind"]) == ("v1", "List")
    deployment, service = manifest["items"]
    assert (deployment["apiVersion"], deployment["kind"]) == ("apps/v1", "Deployment")
    assert (service["apiVersion"], service["kind"]) == ("v1", "Service")
    pod = deployment["spec"]["template"]
    labels = deployment["spec"]["selector"]["matchLabels"]
    assert labels == pod["metadata"]["labels"] == service["spec"]["selector"]
    (container,) = pod["spec"]["containers"]
    for name in (container["name"], deployment["metadata"]["name"], service["metadata"]["name"]):
        assert re.fullmatch("[a-z]([-a-z0-9]{0,61}[a-z0-9])?", name), name
    assert service["metadata"]["name"] == deployment["metadata"]["name"] == file.stem
    assert int(container["resources"]["limits"]["nvidia.com/gpu"]) > 0
    shell, flag, script = container["command"]
    assert "CUDA_VISIBLE_DEVICES" not in script and f"NODE{len(ports)}=" in script
    port = container["ports"][0]["containerPort"]
    assert f"--port {port}" in script and service["spec"]["ports"][0]["port"] == port
    assert {mount["name"] for mount in container["volumeMounts"]} == {volume["name"] for volume in pod["spec"]["volumes"]}
    ports.add(port)
    if client is not None:
        hold_against_schema(deployment, "V1Deployment", f"{file.name}/items/0")
        hold_against_schema(service, "V1Service", f"{file.name}/items/1")
assert files and len(ports) == len(files), "no manifests, or a port twice"
