#!/usr/bin/env python3
"""Does the 90 % interval of `compare` hold the truth in 84 to 95 % of sweeps?

  tests/seeds.py MOESIM [--sweeps N]

N sweeps (100) of 4 points by 3 seeds, replication 1.5 against 1 on a tiny deployment, no seed twice. The truth is the mean
over all seeds. Points of a sweep share their seeds, whose errors therefore go together: an interval that takes them for
independent holds the truth in 33 to 75 % (a bootstrap of each point did)."""
import argparse, json, math, pathlib, subprocess, sys, tempfile

root = pathlib.Path(__file__).resolve().parents[1]
parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("moesim", type=pathlib.Path)
parser.add_argument("--sweeps", type=int, default=100)
asked = parser.parse_args()
moesim, metrics = str(asked.moesim.resolve()), ["total_token_throughput", "decode_step_ms", "max_activated_mean", "median_tpot_ms"]
logs, intervals = {m: [] for m in metrics}, {m: [] for m in metrics}
with tempfile.TemporaryDirectory() as folder:
    work = pathlib.Path(folder)
    base = json.loads((root / "tests/tiny.json").read_text()) | {"cluster": "h100x8", "model": "olmoe_1b_7b"}
    (work / "base.json").write_text(json.dumps(base))
    for i in range(asked.sweeps):
        sweep = {"base": "base.json", "seeds": [3 * i + 1, 3 * i + 2, 3 * i + 3],
                 "axes": {"/workload/arrivals/concurrency": [8, 16], "/token_routing/decode": ["even", "random"],
                          "/placement/replication": [1, 1.5]},
                 "set": {"/workload/requests": 60, "/workload/lengths": {"type": "fixed", "prompt": 20, "output": 10}}}
        (work / "sweep.json").write_text(json.dumps(sweep))
        store = work / f"{i}.sqlite"
        subprocess.run([moesim, "sweep", work / "sweep.json", "-o", store], check=True, capture_output=True)
        done = subprocess.run([moesim, "compare", store, "--baseline", "/placement/replication=1", "--candidate",
                               "/placement/replication=1.5", "--json"], check=True, capture_output=True, text=True)
        compared = json.loads(done.stdout)
        store.unlink()
        for m in metrics:
            intervals[m].append(compared["summary"][m]["interval"])
            logs[m] += [math.log(pair["ratios"][m]) for pair in compared["pairs"]]
held = total = 0
for m in metrics:
    truth = math.exp(sum(logs[m]) / len(logs[m]))
    holds = sum(low <= truth <= high for low, high in intervals[m])
    print(f"{m}: {truth:.4f}, held by {holds} of {asked.sweeps} intervals")
    held, total = held + holds, total + asked.sweeps
print(f"{held} of {total} intervals hold the truth: {100 * held / total:.1f} %")
sys.exit(0 if 0.84 <= held / total <= 0.95 else 1)
