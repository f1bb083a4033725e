#!/usr/bin/env bash
# Does the page of `moesim report` work in a browser, and do its commands reproduce its points? Skips (77), saying why,
# without Chromium, Node or what tools/report/fetch gets.
#   tests/report/page.sh MOESIM [FOLDER for screenshots]
set -euo pipefail
moesim=$(realpath "$1")
shots=${2:-}
cd "$(dirname "$0")/../.."
skip() { echo "skipped: $*" >&2; exit 77; }
command -v node >/dev/null || skip "no node; tools/setup --tests installs it"
chromium=$(command -v chromium || command -v chromium-browser || command -v google-chrome) ||
  skip "no chromium; tools/setup --tests installs it"
[[ -d tools/report/node_modules/playwright-core ]] || skip "no playwright-core; run tools/report/fetch playwright-core"

if grep -q '"resolved"' tools/report/package-lock.json; then
  echo "package-lock.json names a registry: npm ci would ask nobody else" >&2
  exit 1
fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
# A tiny sweep with a group that beats another, points that are beaten, and one that fails for a reason full of markup.
cat >"$work/base.json" <<JSON
{ "cluster": "$PWD/hardware/clusters/h100x8.json",
  "model": {"name": "tiny", "source": "made for a test", "hidden": 512, "vocabulary": 1024, "tied_embeddings": false,
            "attention": {"query_heads": 8, "kv_heads": 4, "head_dim": 64},
            "experts": {"count": 32, "per_token": 2, "width": 256},
            "layers": [{"repeat": 4, "pattern": [{"ffn": "moe"}]}]},
  "precision": {"experts": "bf16", "attention": "bf16"},
  "parallel": {"dp": 8, "tp": 1, "ep": 8},
  "scheduling": {"type": "prefill_first", "max_num_batched_tokens": 512, "max_num_seqs": 16},
  "workload": {"arrivals": {"type": "closed_loop", "concurrency_per_rank": 4},
               "lengths": {"type": "fixed", "prompt": 32, "output": 8},
               "gating": {"type": "uniform", "requests": 16, "prompt_rows": 8, "decode_rows": 8}, "requests": 128},
  "placement": {"type": "eplb", "replication": 1.5},
  "token_routing": {"prefill": "even", "decode": "metro", "mixed": "prefill"},
  "dispatch": {"prefill": "all_to_all", "decode": "ids_all_gather"}, "seed": 1 }
JSON
cat >"$work/sweep.json" <<'JSON'
{ "base": "base.json",
  "blocks": [
    {"axes": {"/placement/replication": [1.0, 1.5], "/token_routing/decode": ["even", "metro"],
              "/workload/arrivals/concurrency_per_rank": [1, 2, 4], "/scheduling/max_num_seqs": [2, 16]}},
    {"set": {"/token_routing/decode": "</script><img src=x onerror=document.title=1><!-- & \"quoted\""}}] }
JSON
"$moesim" sweep "$work/sweep.json" -o "$work/s.sqlite" >/dev/null 2>"$work/err" || { cat "$work/err" >&2; exit 1; }
if ! "$moesim" report "$work/s.sqlite" -o "$work/report.html" --base "$work/base.json" 2>"$work/err"; then
  grep -q "built without Apache ECharts" "$work/err" && skip "$(cat "$work/err")"
  cat "$work/err" >&2
  exit 1
fi
"$moesim" report "$work/s.sqlite" -o "$work/again.html" --base "$work/base.json" 2>/dev/null
cmp "$work/report.html" "$work/again.html"
"$moesim" pareto "$work/s.sqlite" --by /placement/replication --by /token_routing/decode --csv "$work/pareto.csv" >/dev/null
# One EP group, two behind one router, and two pools; clients who leave.
sed 's|"concurrency_per_rank": 4|"concurrency": 16|; s|"dp": 8, "tp": 1, "ep": 8|"dp": 4, "tp": 1, "ep": 4|
     s|"requests": 128}|"requests": 128, "cancellation": {"share": 0.5, "mean_after": "1 ms"}}|' "$work/base.json" >"$work/half.json"
cat >"$work/pools.json" <<'JSON'
{ "base": "half.json",
  "blocks": [
    {"axes": {"/instances": [1, 2], "/token_routing/decode": ["even", "metro"]}},
    {"set": {"/pools": {"prefill": {}, "decode": {"scheduling": {"type": "decode_only", "max_num_seqs": 16}}}}}] }
JSON
"$moesim" sweep "$work/pools.json" -o "$work/pools.sqlite" >/dev/null 2>"$work/err" || { cat "$work/err" >&2; exit 1; }
"$moesim" report "$work/pools.sqlite" -o "$work/pools.html" --base "$work/half.json" 2>/dev/null
"$moesim" plan --model qwen3_30b_a3b --gpu h100 --gpus 2 --isl 200 --osl 40 --ttft 300ms --tpot 30ms -o "$work/plan" \
  >/dev/null 2>"$work/err" || { cat "$work/err" >&2; exit 1; }
python3 - "$moesim" "$work" <<'PY'
import json, re, shlex, sqlite3, subprocess, sys
moesim, work = sys.argv[1:]
page = open(f"{work}/report.html").read()
data = json.loads(re.search(r'<script id="data" type="application/json">\n(.*?)\n</script>', page, re.S)[1])
store = sqlite3.connect(f"{work}/s.sqlite")
assert [len(data[k]) for k in ("points", "groups", "unfinished")] == [24, 4, 1], "points, groups"
# The command of a point gives the report that the store has.
for point in data["points"][::9]:
    command = shlex.split(point["command"])
    assert command[:2] == ["moesim", "run"]
    ran = json.loads(subprocess.run([moesim, *command[1:], "--json"], capture_output=True, check=True).stdout)
    [stored] = store.execute("SELECT report FROM points WHERE config_hash = ?", [point["id"]]).fetchone()
    assert ran == json.loads(stored), point["command"]
    # The store's view names metrics as the report does.
    row = store.execute("SELECT * FROM metrics WHERE config_hash = ?", [point["id"]])
    row = dict(zip([c[0] for c in row.description], row.fetchone()))
    same = [name for name in row if name in ran["metrics"]]
    assert len(same) > 20 and all(row[name] == ran["metrics"][name] for name in same)
[shares] = sqlite3.connect(f"{work}/pools.sqlite").execute("SELECT min(cancelled_share), max(timeout_share) FROM metrics")
assert shares[0] > 0 and shares[1] == 0, shares
PY
node tests/report/check.mjs "$chromium" "$work/report.html" "$work/pareto.csv" "${shots:-$work}" "$work/pools.html" \
  "$work/plan.html"
