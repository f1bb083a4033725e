#!/usr/bin/env bash
# Does tune come within 1 % of the best point of a whole sweep, with at most a tenth of its runs?
#   tests/tune.sh MOESIM
set -euo pipefail
moesim=$(realpath "$1")
source_dir=$(realpath "$(dirname "$0")/..")
work=$(mktemp -d -p /dev/shm moesim-tune.XXXXXX 2>/dev/null || mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
fail() { echo "FAILED: $*" >&2; exit 1; }

# Not the shipped example: another model, cluster and SLO, axes that depend on each other.
cat >sweep.json <<JSON
{"base": "$source_dir/tests/tiny.json",
 "set": {"/slo": {"ttft": "60 ms", "tpot": "4 ms"}, "/workload/requests": 80,
         "/workload/lengths": {"type": "fixed", "prompt": 16, "output": 12},
         "/workload/arrivals": {"type": "poisson", "rate": "1 /s"},
         "/placement": {"type": "eplb"}},
 "axes": {"/scheduling/max_num_seqs": [4, 8, 16], "/placement/replication": [1.0, 1.5],
          "/token_routing/decode": ["even", "static_primary", "metro"],
          "/workload/arrivals/rate": ["100 /s", "141 /s", "200 /s", "283 /s", "400 /s", "566 /s", "800 /s", "1131 /s",
                                      "1600 /s", "2263 /s", "3200 /s", "4525 /s"]},
 "zip": {"/parallel": [{"dp": 2, "ep": 2}, {"dp": 4, "ep": 4}, {"dp": 8, "ep": 8}, {"dp": 4, "tp": 2, "ep": 8}],
         "/dispatch/decode": ["all_gather", "all_gather", "all_gather", "all_gather"]}}
JSON
"$moesim" sweep sweep.json -o grid.sqlite >/dev/null 2>log || fail "$(tail -n 1 log)"
"$moesim" tune sweep.json --json -o best.json >found.json 2>log || fail "$(tail -n 1 log)"
"$moesim" tune sweep.json >text 2>/dev/null || fail "tune in letters"
(($(grep -v '^moesim run' text | wc -L) <= 100)) || fail "tune is wider than 100 columns"
python3 - <<'PY'
import json, sqlite3
found = json.load(open("found.json"))
metrics = [json.loads(report)["metrics"] for report, in
           sqlite3.connect("grid.sqlite").execute("SELECT report FROM points WHERE status = 'done'")]
best = max(m["request_goodput"] for m in metrics if m["slo_attainment"] >= .9)
print(f"{found['goodput']:.1f} of {best:.1f} requests/s, {found['runs']} runs of {len(metrics)} points, "
      f"{found['pruned']} places pruned")
assert found["goodput"] >= .99 * best, "not within 1 %"
assert found["runs"] * 10 <= len(metrics), "more than a tenth of the runs"
assert json.load(open("best.json"))["metrics"]["request_goodput"] == found["goodput"]
PY
sed 's/"ttft": "60 ms"/"ttft": "1 ns"/' sweep.json >hopeless.json
code=0
"$moesim" tune hopeless.json >/dev/null 2>log || code=$?
((code == 3)) || fail "a hopeless SLO: exit $code: $(tail -n 1 log)"
echo "all good"
