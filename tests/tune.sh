#!/usr/bin/env bash
# Does tune come within 1 % of the best point of a whole sweep, with at most an eighth of its runs?
#   tests/tune.sh MOESIM
set -euo pipefail
moesim=$(realpath "$1")
source_dir=$(realpath "$(dirname "$0")/..")
work=$(mktemp -d -p /dev/shm moesim-tune.XXXXXX 2>/dev/null || mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
fail() { echo "FAILED: $*" >&2; exit 1; }

# Not the shipped example: another model, cluster, scheduler and SLO. The time to the first token must be short beside
# the length of a run (some 0.1 s), or an overloaded run ends before its queue shows; and steps mix phases, because with
# prefill_first a backlog makes TPOT better: then attainment does not fall with the load, which is what tune relies on.
cat >sweep.json <<JSON
{"base": "$source_dir/tests/tiny.json",
 "set": {"/slo": {"ttft": "8 ms", "tpot": "4 ms"}, "/workload/requests": 400,
         "/workload/lengths": {"type": "fixed", "prompt": 16, "output": 12},
         "/workload/arrivals": {"type": "poisson", "rate": "1 /s"},
         "/placement": {"type": "eplb"}, "/scheduling/type": "chunked_prefill"},
 "axes": {"/scheduling/max_num_seqs": [4, 8, 16], "/placement/replication": [1.0, 1.5],
          "/token_routing/decode": ["even", "static_primary", "metro"],
          "/workload/arrivals/rate": ["250 /s", "354 /s", "500 /s", "707 /s", "1000 /s", "1414 /s", "2000 /s",
                                      "2828 /s", "4000 /s", "5657 /s", "8000 /s", "11314 /s"]},
 "zip": {"/parallel": [{"dp": 2, "ep": 2}, {"dp": 4, "ep": 4}, {"dp": 8, "ep": 8}, {"dp": 4, "tp": 2, "ep": 8}],
         "/dispatch/decode": ["all_gather", "all_gather", "all_gather", "all_gather"]}}
JSON
"$moesim" sweep sweep.json -o grid.sqlite >/dev/null 2>log || fail "$(tail -n 1 log)"
"$moesim" tune sweep.json --json -o best.json >found.json 2>log || fail "$(tail -n 1 log)"
"$moesim" tune sweep.json >text 2>/dev/null || fail "tune in letters"
(($(grep -v '^moesim run' text | wc -L) <= 100)) || fail "tune is wider than 100 columns"
eval "$(grep '^moesim run' text | sed 's/^moesim/"$moesim"/') --json" >again.json 2>/dev/null || fail "the command does not run"
python3 - <<'PY'
import json, sqlite3
assert json.load(open("again.json"))["metrics"] == json.load(open("best.json"))["metrics"], "the command runs another point"
found = json.load(open("found.json"))
metrics = []
for config, report in sqlite3.connect("grid.sqlite").execute("SELECT config, report FROM points WHERE status = 'done'"):
    rate = float(json.loads(config)["workload"]["arrivals"]["rate"].removesuffix(" /s"))
    report = json.loads(report)
    metrics.append((report["metrics"], rate, report["measurement"]["state"] == "stable"))
# No more than arrives: a short run that drains ends more requests than came while it was measured.
goodput = lambda m, rate: min(m["request_throughput"], rate) * m["slo_attainment"]
best, at = max((goodput(m, rate), rate) for m, rate, steady in metrics if m["slo_attainment"] >= .9 and steady)
rates = sorted({rate for _, rate, _ in metrics})
assert rates[0] < at < rates[-1], f"the best rate, {at}, is at the end of the grid: the SLO decides nothing"
missed = sum(m["slo_attainment"] < .9 or not steady for m, _, steady in metrics)
print(f"best rate {at}, {missed} points miss the SLO")
print(f"{found['goodput']:.1f} of {best:.1f} requests/s, {found['runs']} runs of {len(metrics)} points, "
      f"{found['ruled_out']} combinations ruled out, {found['taken_to_miss']} points taken to miss")
assert found["goodput"] >= .99 * best, "not within 1 %"
assert found["runs"] * 8 <= len(metrics), "more than an eighth of the runs"
rate = float(found["config"]["workload"]["arrivals"]["rate"].removesuffix(" /s"))
assert goodput(json.load(open("best.json"))["metrics"], rate) == found["goodput"]
PY
sed 's/"ttft": "8 ms"/"ttft": "1 ns"/' sweep.json >hopeless.json
code=0
"$moesim" tune hopeless.json >/dev/null 2>log || code=$?
((code == 3)) || fail "a hopeless SLO: exit $code: $(tail -n 1 log)"
grep -q 'the nearest, at 250 /s: TPOT .* ms (limit 4.000 ms), TTFT .* ms (limit 0.0.* ms), met by 0.0 %, ' log || fail "no nearest miss: $(tail -n 1 log)"

# Stopped and asked again, it runs what is left and says the same; its store draws as a sweep's does.
"$moesim" tune sweep.json --json >whole.json 2>/dev/null
"$moesim" tune sweep.json --json --store kept.sqlite >/dev/null 2>log & tuning=$!
done_points() { sqlite3 kept.sqlite "SELECT count(*) FROM points WHERE status = 'done'" 2>/dev/null || echo 0; }
for _ in $(seq 600); do (($(done_points) > 0)) && break; sleep .05; done
kill -INT $tuning; code=0; wait $tuning || code=$?
((code == 130 || code == 0)) || fail "stopped: exit $code: $(tail -n 1 log)"
if ((code == 130)); then grep -q 'stopped after .* the same command continues from there' log || fail "stopped: $(tail -n 1 log)"; fi
"$moesim" tune sweep.json --json --store kept.sqlite >again.json 2>log || fail "$(tail -n 1 log)"
grep -q 'of the runs were done before' log || fail "nothing is resumed: $(tail -n 1 log)"
cmp -s whole.json again.json || fail "stopped and resumed, it says something else"
"$moesim" pareto kept.sqlite --by /token_routing/decode >/dev/null 2>log || fail "the store: $(tail -n 1 log)"
sed 's/"8 ms"/"9 ms"/' sweep.json >other.json
code=0; "$moesim" tune other.json --store kept.sqlite >/dev/null 2>log || code=$?
((code == 2)) && grep -q 'holds the runs of another question' log || fail "another search takes the store: exit $code"

# Loads beyond the grid; loads without a unit.
sed 's|"/workload/arrivals/rate": \[.*|"/workload/arrivals/rate": ["250 /s", "500 /s"]},|; /"2828 /d' sweep.json >low.json
"$moesim" tune low.json --json 2>log | python3 -c 'import json, sys; assert float(json.load(sys.stdin)["rate"].split()[0]) > 500' ||
  fail "no load above the grid: $(tail -n 1 log)"
sed 's/"250 \/s"/250/' low.json >bare.json
code=0; "$moesim" tune bare.json >/dev/null 2>log || code=$?
((code == 2)) || fail "a load without a unit: exit $code: $(tail -n 1 log)"

# Sessions: the most alive at a time of a grid, and a limit on later turns that leaves fewer.
cat >sessions.json <<JSON
{"base": "$source_dir/configs/agent_sessions_tiers.json",
 "axes": {"/workload/arrivals/concurrency": [4, 8, 16], "/kv_cache/tiers/0/capacity/of_hbm": [0, 2],
          "/workload/requests": [300], "/workload/sessions/start_at": ["uniform"]}}
JSON
"$moesim" tune sessions.json --json >sessions-best.json 2>log || fail "sessions: $(tail -n 1 log)"
"$moesim" tune sessions.json --ttft-later 400ms --json >sessions-less.json 2>log || fail "sessions in time: $(tail -n 1 log)"
python3 - <<'PY' || fail "sessions: $(cat sessions-best.json)"
import json
best, less = (json.load(open(f"sessions-{f}.json")) for f in ("best", "less"))
sessions = lambda found: found["config"]["workload"]["arrivals"]["concurrency"]
assert best["rate"] == f"{sessions(best)} sessions" and sessions(best) >= 16, best["rate"]
assert best["config"]["kv_cache"]["tiers"][0]["capacity"]["of_hbm"] == 2, "the tier brings nothing"
assert sessions(less) < sessions(best), (less["rate"], best["rate"])
PY
sed 's|"/workload/arrivals/concurrency": \[.*\], "/kv|"/workload/arrivals/rate": ["1 /s"], "/kv|' sessions.json >rates.json
code=0; "$moesim" tune rates.json >/dev/null 2>log || code=$?
((code == 2)) && grep -q 'needs an axis "/workload/arrivals/concurrency"' log || fail "sessions by rate: exit $code: $(tail -n 1 log)"

# The shipped example.
"$moesim" tune "$source_dir/configs/tune_quick.json" >quick.txt 2>log || fail "the shipped example: $(tail -n 1 log)"
grep -Eq '^(best|[0-9]+ tie at .*the first): ' quick.txt || fail "the shipped example finds nothing"
echo "all good"
