#!/usr/bin/env python3
"""Do `place` and `replay --tokens` give the known answers, through the command line?

    tests/oracles.py MOESIM [ORACLES]

Skips, visibly and with exit 77, where the oracles (../shared/oracles) are absent.
"""
import json
import pathlib
import subprocess
import sys
import tempfile

moesim = sys.argv[1]
oracles = pathlib.Path(sys.argv[2] if len(sys.argv) > 2 else pathlib.Path(__file__).parents[2] / "shared/oracles")
if not oracles.is_dir():
    print(f"skipped: {oracles} is absent")
    sys.exit(77)

failures = 0


def check(holds, what):
    global failures
    if not holds:
        failures += 1
        print(f"FAILED: {what}")


def run(*args):
    return subprocess.run([moesim, *map(str, args)], check=True, capture_output=True, text=True).stdout


def place(oracle, work):
    given = oracle["input"]
    (work / "load.json").write_text(json.dumps({"load": given["weight"]}))
    run("place", "--policy", "eplb", "--load", work / "load.json", "--gpus", given["num_gpus"], "--slots",
        given["num_replicas"], "--nodes", given["num_nodes"], "--groups", given["num_groups"], "-o", work / "placement.json")
    return json.loads((work / "placement.json").read_text())["physical_to_logical_map"]


def experts_on_gpu(given):
    """Slots per GPU as the oracle lists them, or one slot per expert and GPU of A."""
    gpus = [[] for _ in range(given["G"])]
    for expert in range(given["N"]):
        for gpu in range(given["G"]):
            gpus[gpu] += [expert] * given["A"][expert][gpu]
    return gpus


def route(oracle, policy, work):
    given = oracle["input"]
    placement = {"num_gpus": given["G"], "num_experts": given["N"], "experts_on_gpu": [experts_on_gpu(given)]}
    (work / "placement.json").write_text(json.dumps(placement))
    (work / "tokens.json").write_text(json.dumps({"tokens": [given["T"]]}))
    out = run("replay", "--routing", policy, "--placement", work / "placement.json", "--tokens", work / "tokens.json", "--json")
    return json.loads(out)["layers"][0]


with tempfile.TemporaryDirectory() as folder:
    work = pathlib.Path(folder)
    names = []
    for file in sorted(oracles.glob("eplb_*.json")):
        oracle = json.loads(file.read_text())
        check(place(oracle, work) == oracle["output"]["phy2log"], f"{file.stem}: slot for slot")
        names.append(file.stem)
    for file in sorted(oracles.glob("minexp_*.json")):
        oracle = json.loads(file.read_text())
        optimal = route(oracle, "optimal", work)
        check(optimal["max_activated"] == oracle["lambda"], f"{file.stem}: lambda")
        loads = sorted(optimal["activated"], reverse=True)
        check(loads == oracle["optimum"]["lexmin_sorted_loads"], f"{file.stem}: lexmin loads")
        metro = route(oracle, "metro", work)
        if "ascending_id" in oracle.get("metro_greedy", {}):
            check(metro["max_activated"] == oracle["metro_greedy"]["ascending_id"]["lam"], f"{file.stem}: metro")
        check(sum(optimal["tokens"]) == sum(oracle["input"]["T"]), f"{file.stem}: tokens")
        names.append(file.stem)
    print(f"{len(names)} oracles: {' '.join(names)}")

sys.exit(1 if failures else 0)
