#!/usr/bin/env python3
"""Does what a report says of its config run again, and give the same report?

  tests/again.py MOESIM MOESIM_LAB [--shipped]

Through the command line, as users do: `run` writes a report, its context/config is written to a file, that file is run.
Experiments with pools are written in seventeen ways (keys beside the pools, in one, in both, an engine, two clusters), and
every verb that reads an experiment must take the second file and refuse, in one line with exit 2, a key beside pools that
both have their own. `what-if` changes each of them by every option, alone and in pairs, and breaks files too.
--shipped: every experiment under configs/, cut to 64 requests, in place of pools. tests/experiments.py does the same of random
ones."""
import argparse, itertools, json, pathlib, subprocess, sys, tempfile

root = pathlib.Path(__file__).resolve().parents[1]
failed = 0


def fail(text):
    global failed
    failed += 1
    print(f"FAILED: {text}", flush=True)


def ended(command):
    return subprocess.run([str(word) for word in command], capture_output=True, text=True, timeout=600)


def refused(done):
    """Whether with exit 2 and one line."""
    said = [line for line in done.stderr.strip().splitlines() if not line.startswith(("info:", "warning:"))]
    return done.returncode == 2 and len(said) == 1 and "internal error" not in done.stderr


def runs_again(moesim, name, file, again, options=()):
    """Writes the resolved config of a run to `again`; whether that gives the same bytes. None where nothing was run."""
    first = ended([moesim, "run", file, "--json", *options])
    if first.returncode != 0:
        if not refused(first):
            fail(f"{name}: exit {first.returncode}: {first.stderr.strip()[-300:]}")
        return None
    report = json.loads(first.stdout)
    if "context" not in report:  # several models
        return None
    again.write_text(json.dumps(report["context"]["config"], indent=1))
    second = ended([moesim, "run", again, "--json"])
    if second.returncode != 0:
        fail(f"{name}: its config does not run: {second.stderr.strip()[-300:]}")
    elif second.stdout != first.stdout:
        fail(f"{name}: its config gives another report")
    return True


def pools():
    """Experiments with pools by name: what stands beside the pools, in one of them, in both."""
    tiny = json.loads((root / "tests/tiny.json").read_text())
    tiny |= {"cluster": "h100x8", "model": "olmoe_1b_7b"}
    prefill = {"scheduling": tiny.pop("scheduling")}
    decode = {"scheduling": {"type": "decode_only", "max_num_seqs": 8}}
    keys = {"parallel": {"dp": 2, "ep": 2}, "placement": {"type": "linear"}, "token_routing": tiny["token_routing"],
            "dispatch": tiny["dispatch"]}
    tiny["parallel"] = {"dp": 4, "tp": 1, "ep": 4}
    made = {"beside": {**tiny, "pools": {"prefill": prefill, "decode": decode}}}
    for key, value in keys.items():
        made[f"{key} of prefill"] = {**tiny, "pools": {"prefill": {**prefill, key: value}, "decode": decode}}
        made[f"{key} of decode"] = {**tiny, "pools": {"prefill": prefill, "decode": {**decode, key: value}}}
        without = {name: kept for name, kept in tiny.items() if name != key}
        made[f"{key} of both"] = {**without, "pools": {"prefill": {**prefill, key: value}, "decode": {**decode, key: value}}}
    apart = {name: kept for name, kept in tiny.items() if name != "cluster"}
    made["two clusters"] = {**apart, "pools": {"prefill": {**prefill, "cluster": "h200x8"}, "decode": {**decode, "cluster": "h100x8"}}}
    made["one cluster inherited"] = {**tiny, "pools": {"prefill": {**prefill, "cluster": "h200x8"}, "decode": decode}}
    made["overlap"] = {**tiny, "kv_transfer": {"sends": "whole", "first_token": "decode"}, "pools": {"prefill": prefill, "decode": decode}}
    engine = {name: kept for name, kept in tiny.items() if name not in ("engine", "dispatch")}
    made["an engine of each"] = {**engine, "pools": {"prefill": {**prefill, "engine": {"name": "none"}, "dispatch": keys["dispatch"]},
                                                    "decode": {**decode, "engine": {"name": "none"}, "dispatch": keys["dispatch"]}}}
    return made


def check_pools(moesim, lab, work):
    verbs = [[moesim, "run"], [moesim, "check"], [moesim, "explain"], [moesim, "what-if", "--set", "/seed=2"],
             [lab, "sensitivity", "--of", "output_throughput"], [lab, "validate", "--fidelity"]]
    sweep = work / "sweep.json"
    ran = 0
    for name, config in pools().items():
        file, again, both = work / "pools.json", work / "again.json", work / "both.json"
        file.write_text(json.dumps(config))
        if not runs_again(moesim, name, file, again):
            fail(f"{name} does not run")
            continue
        ran += 1
        both.write_text(json.dumps(json.loads(again.read_text()) | {"scheduling": "decode_only"}))
        for verb in verbs if name in ("beside", "two clusters", "dispatch of both") else verbs[1:4]:
            done = ended([*verb, again])
            if done.returncode != 0:
                fail(f"{name}: {verb[1:]} of the config of a report: {done.stderr.strip()[-300:]}")
            done = ended([*verb, both])
            if not refused(done) or "/scheduling: has no effect" not in done.stderr:
                fail(f"{name}: {verb[1:]} takes a key without effect: {done.stderr.strip()[-300:]}")
        sweep.write_text(json.dumps({"base": "again.json", "axes": {"/scheduling": ["decode_only", "chunked_prefill"]}}))
        done = ended([moesim, "sweep", sweep, "-o", work / "none.sqlite"])
        if not refused(done) or "has no effect" not in done.stderr:
            fail(f"{name}: a sweep takes an axis without effect: {done.stderr.strip()[-300:]}")
    print(f"{ran} experiments with pools run again")


def check_changes(moesim, work):
    """No combination of what-if's options ends in an internal error, and none takes GPUs from a pool."""
    options = [["--ep", "off"], ["--ep", "on"], ["--redundant", "16"], ["--redundant", "0"], ["--metro"], ["--engine", "vllm"], ["--engine", "sglang"]]
    changes = options + [a + b for a, b in itertools.combinations(options, 2) if a[0] != b[0]]
    broken = ['{}', '[]', '3', 'null', '"x"', '{"parallel":[]}', '{"pools":[]}', '{"engine":[]}', '{"pools":{"decode":3}}',
              '{"pools":{"prefill":{},"decode":{"parallel":[]}}}', '{"placement":3,"pools":{}}']
    file, tried, changed = work / "what.json", 0, 0
    for text in broken:
        file.write_text(text)
        for change in [*options, ["--set", "/seed=2"], ["--seed", "3", "--metro"]]:
            tried += 1
            if not refused(done := ended([moesim, "what-if", file, *change])):
                fail(f"what-if {change} of {text}: exit {done.returncode}: {done.stderr.strip()[-200:]}")
    names = ("beside", "parallel of decode", "dispatch of prefill", "dispatch of both", "placement of both", "two clusters", "an engine of each")
    for name, config in pools().items():
        if name not in names:
            continue
        file.write_text(json.dumps(config))
        for change in changes:
            tried += 1
            done = ended([moesim, "what-if", file, "--json", *change])
            if done.returncode != 0:
                if not refused(done) or "missing" in done.stderr or "has no effect" in done.stderr:
                    fail(f"what-if {change} of {name}: exit {done.returncode}: {done.stderr.strip()[-300:]}")
                continue
            changed += 1
            plan = config["pools"]["decode"].get("parallel", config.get("parallel"))
            for patch in json.loads(done.stdout)["changed"]:
                if patch["path"] == "/pools/decode/parallel" and patch["op"] == "add" and patch["value"].get("dp") != plan["dp"]:
                    fail(f"what-if {change} of {name} changes the decode pool's GPUs: {patch}")
    print(f"what-if: {tried} combinations tried, {changed} changed something")


def experiments():
    """The experiments under configs/, each with its text."""
    for file in sorted((root / "configs").rglob("*.json")):
        config = json.loads(file.read_text())
        if isinstance(config, dict) and isinstance(config.get("workload"), dict):
            yield file, config


def check_loads(moesim):
    """Every experiment that users are shown fits its GPUs; those whose data is not here are left out."""
    loaded = 0
    for file, config in experiments():
        absent = "../shared" in json.dumps(config) and not (root.parent / "shared").exists()
        if absent or file.parent.name == "published":  # steps of servers, of which nobody said how they fit
            continue
        done = ended([moesim, "check", file])
        loaded += done.returncode == 0
        if done.returncode != 0:
            fail(f"{file.relative_to(root)}: {done.stderr.strip()[-300:]}")
    print(f"{loaded} shipped experiments can be run")


def check_shipped(moesim, work):
    ran = 0
    for file, config in experiments():
        again = file.with_name(f".again_{file.name}")  # paths are relative to it
        try:
            few = min(64, config["workload"].get("requests", 64))
            if runs_again(moesim, file.relative_to(root), file, again, ["--set", f"/workload/requests={few}"]):
                ran += 1
        finally:
            again.unlink(missing_ok=True)
    print(f"{ran} shipped experiments run again")


parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("moesim", type=pathlib.Path)
parser.add_argument("lab", type=pathlib.Path)
parser.add_argument("--shipped", action="store_true", help="every experiment under configs/, not pools")
asked = parser.parse_args()
moesim, lab = asked.moesim.resolve(), asked.lab.resolve()
with tempfile.TemporaryDirectory() as folder:
    work = pathlib.Path(folder)
    if asked.shipped:
        check_shipped(moesim, work)
    else:
        check_loads(moesim)
        check_pools(moesim, lab, work)
        check_changes(moesim, work)
sys.exit(1 if failed else 0)
