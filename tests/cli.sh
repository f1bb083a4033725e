#!/usr/bin/env bash
# Do exit codes and messages stand, is nothing left half-written, are outputs the same bytes twice?
#   tests/cli.sh MOESIM
set -u
moesim=$(realpath "$1")
cd "$(dirname "$0")/.."
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failures=0

fail() { echo "FAILED: $*" >&2; failures=$((failures + 1)); }

# refuses WHAT PATTERN ARGS...: exit 2, nothing on stdout, one line on stderr that matches the pattern.
refuses() {
  local what=$1 pattern=$2
  shift 2
  local program=$moesim
  case ${1-} in calibrate | reproduce | sensitivity | study | validate) program=$moesim-lab ;; esac
  "$program" "$@" >"$work/out" 2>"$work/err"
  local code=$?
  ((code == 2)) || fail "$what: exit $code, not 2: $(cat "$work/err")"
  [[ -s $work/out ]] && fail "$what: wrote to stdout"
  (($(wc -l <"$work/err") == 1)) || fail "$what: not one line: $(cat "$work/err")"
  grep -Eq -- "$pattern" "$work/err" || fail "$what: \"$(cat "$work/err")\" does not match \"$pattern\""
}

# A small experiment to damage, and its routing trace.
"$moesim" trace generate --model models/zoo/gpt_oss_20b.json --seed 3 -o "$work/trace" --gating \
  '{"type": "topical", "requests": 24, "prompt_rows": 8, "decode_rows": 8}' >/dev/null || fail "trace generate"
cat >"$work/good.json" <<JSON
{ "cluster": "$PWD/hardware/clusters/h100x8.json", "model": "$PWD/models/zoo/gpt_oss_20b.json",
  "precision": {"experts": "mxfp4", "attention": "bf16"},
  "parallel": {"dp": 8, "tp": 1, "ep": 8},
  "scheduling": {"type": "chunked_prefill", "max_num_batched_tokens": 512, "max_num_seqs": 16},
  "workload": {"arrivals": {"type": "poisson", "rate": "200 /s"},
               "lengths": {"type": "fixed", "prompt": 64, "output": 8},
               "gating": {"type": "recorded", "trace": "trace"}, "requests": 60},
  "placement": {"type": "eplb", "replication": 1.5},
  "token_routing": {"prefill": "even", "decode": "metro", "mixed": "prefill"},
  "dispatch": {"prefill": "all_to_all", "decode": {"type": "all_gather"}}, "seed": 1 }
JSON
run() { "$moesim" run "$work/good.json" "$@"; }
config=$work/good.json

# Results.
run --json --threads 1 >"$work/a" 2>/dev/null || fail "run"
run --json --threads 2 >"$work/b" 2>/dev/null || fail "run with two threads"
cmp "$work/a" "$work/b" || fail "one thread and two give different bytes"
run -o "$work/r.json" --profile "$work/p.json" --requests "$work/r.csv" >"$work/text" 2>/dev/null || fail "run -o"
cmp "$work/a" "$work/r.json" || fail "--json and -o differ"
(($(wc -l <"$work/r.csv") == 61)) || fail "--requests: not one line per request"
(($(wc -L <"$work/text") <= 100)) || fail "run's tables are wider than 100 columns"
python3 - "$work/r.json" "$work/p.json" <<'PY' || fail "report keys"
import json, sys
report, profile = (json.load(open(f)) for f in sys.argv[1:])
for key in "context metrics experts communication breakdown memory kv routing_coverage".split(): report[key]
for metric in "ttft tpot itl e2el".split():
    for statistic in "mean median std p50 p90 p95 p99".split(): report["metrics"][f"{statistic}_{metric}_ms"]
for key in """completed request_throughput request_goodput output_throughput total_token_throughput tokens_per_s_per_gpu
              tokens_per_s_per_user total_tokens_per_s_per_gpu mfu mbu""".split(): report["metrics"][key]
for key in "wall_s cpu_s peak_rss_mb steps steps_per_s routed_ids_per_s generated_tokens_per_s".split(): profile[key]
assert report["metrics"]["completed"] == 60 and report["experts"]["replication_effective"] == 1.5
PY
run --intervals --json --threads 1 >"$work/i" 2>/dev/null || fail "run --intervals"
run --intervals --json --threads 2 2>/dev/null | cmp - "$work/i" || fail "--intervals: one thread and two differ"
run --intervals 2>/dev/null | grep -Eq 'mean_tpot_ms( +[0-9.]+){3}' || fail "--intervals: no band on TPOT"
# What comes along is called by its name, or as HuggingFace calls it.
run --json --set /cluster=h100x8 --set /model=openai/gpt-oss-20b >"$work/named" 2>/dev/null || fail "short names"
python3 - "$work/a" "$work/named" <<'PY' || fail "short names give another result"
import json, sys
a, b = (json.load(open(f)) for f in sys.argv[1:])
assert a["metrics"] == b["metrics"] and b["context"]["config"]["cluster"] == "h100x8"
PY
"$moesim" list models | grep -Eq '^  qwen3_30b_a3b +Qwen3-30B-A3B: 30.53 B parameters, 3.[0-9]+ B active; 8 of 128' || fail "list models"
"$moesim" list gpus | grep -Eq '^  h200 +H200 SXM 141GB: 140 GiB at 4.8 TB/s' || fail "list gpus"
"$moesim" list --json --csv "$work/list.csv" >"$work/list" || fail "list --json"
python3 - "$work" <<'PY' || fail "list: JSON and CSV"
import csv, json, sys
rows = json.load(open(sys.argv[1] + "/list"))["rows"]
assert rows == list(csv.DictReader(open(sys.argv[1] + "/list.csv")))
assert {"kind": "gpus", "name": "h200"}.items() <= next(row for row in rows if row["name"] == "h200").items()
PY
"$moesim" check "$config" --json 2>/dev/null | python3 -c '
import json, sys
said = json.load(sys.stdin)
budget = said["pool"]["bytes_per_gpu"]
assert said["valid"] and said["gpus"] > 0 and all(bytes >= 0 for bytes in budget.values()) and budget["kv_cache"] > 0, said' ||
  fail "check --json"
"$moesim" list clusters | grep -Eq '^  gb200_nvl72 +72 x GB200 .*: 72 GPUs, NVLink domains of 72' || fail "list clusters"
# Every key of a report is described, and what rests on what is said where the figures are.
"$moesim" keys report >"$work/keys" || fail "keys report"
(($(wc -L <"$work/keys") <= 100)) || fail "keys report is wider than 100 columns"
run --json --set /slo='{"ttft":"10 ms","tpot":"5 ms"}' --set '/parallel={"dp":4,"ep":4}' --set /instances=2 >"$work/two" 2>/dev/null
python3 - "$work/keys" "$work/a" "$work/two" <<'PY' || fail "keys of a report that keys report lacks"
import json, re, sys
lines = [line.split() for line in open(sys.argv[1]) if line.startswith("/")]
rows = [words[0] for words in lines]
for group, as_group in [(words[0][:-3], words[-1][:-3]) for words in lines if words[0].endswith("/...")]:
    rows += [group + row[len(as_group):] for row in rows if row.startswith(as_group) and not row.endswith("/...")]
part = lambda p: r"\d+" if p == "N" else "[^/]+" if p.isupper() else re.escape(p)
known = [re.compile("/".join(map(part, r.split("/"))) + "(/.*)?") for r in rows]
def pointers(value, at=""):
    if isinstance(value, dict) and value:
        for key, inside in value.items(): yield from pointers(inside, f"{at}/{key}")
    elif isinstance(value, list) and value:
        for place, inside in enumerate(value): yield from pointers(inside, f"{at}/{place}")
    elif value not in ({}, []): yield at
unknown = {p for f in sys.argv[2:] for p in pointers(json.load(open(f))) if not any(k.fullmatch(p) for k in known)}
assert len(rows) > 90 and not unknown, sorted(unknown)[:9]
PY
grep -Eq '^trust: of the time [0-9]+ % rests on measurements of this GPU' "$work/text" || fail "run says nothing of trust"
run --set /slo='{"ttft":"1 s"}' 2>/dev/null | grep -Eq '^SLO \(TTFT 1 s\) met by 100.0 % of the requests' || fail "run says nothing of the SLO"
grep -Eq '^straggler: GPU [0-7] \(waits' "$work/text" || fail "run names no straggler"
run --steps "$work/s.csv" --timeline "$work/t.json" --events "$work/e.jsonl" --json >"$work/d" 2>/dev/null ||
  fail "run --steps --timeline --events"
cmp "$work/a" "$work/d" || fail "watching a run changes its report"
python3 - "$work/a" "$work/s.csv" "$work/t.json" "$work/p.json" "$work/e.jsonl" <<'PY' || fail "steps, timeline and events"
import csv, json, sys
steps = list(csv.DictReader(open(sys.argv[2])))
trace = json.load(open(sys.argv[3]))["traceEvents"]
profile = json.load(open(sys.argv[4]))
assert len(steps) == profile["steps"] == sum(e["ph"] == "X" and e["pid"] == 1 for e in trace)
assert sum(e["ph"] == "b" and e["name"] == "request" for e in trace) == 60
lanes = [e["args"]["name"] for e in trace if e["name"] == "thread_name"]
assert lanes == ["steps"] + [f"GPU {g}" for g in range(8)]
events = [json.loads(line) for line in open(sys.argv[5])]
assert [e["request"] for e in events if e["event"] == "request_arrives"] == list(range(60))
assert sum(e["event"] == "step_ends" and e["instance"] == 0 for e in events) == len(steps)
assert all(a["at_s"] <= b["at_s"] for a, b in zip(events, events[1:]))
PY
head -1 "$work/r.csv" | grep -q 'arrival_s,.*ttft_ms,tpot_ms,e2el_ms' || fail "--requests: no units in the header"
# The report's own config runs again, to the same bytes.
python3 -c 'import json, sys; json.dump(json.load(open(sys.argv[1]))["context"]["config"], open(sys.argv[2], "w"))' \
  "$work/r.json" "$work/again.json"
"$moesim" run "$work/again.json" --json >"$work/c" 2>/dev/null || fail "the resolved config does not run"
cmp "$work/a" "$work/c" || fail "the resolved config gives another report"
# A tier: 98,304 B of each token, 1,024 tokens, 63 GB/s x .85.
# Completion knows verbs and options; zsh takes that of bash; fish's words are quoted.
(source <("$moesim" completion bash) && COMP_WORDS=(moesim run --int) COMP_CWORD=2 && _moesim && [[ ${COMPREPLY[*]} == --intervals ]]) ||
  fail "completion of an option"
(source <("$moesim" completion bash) && COMP_WORDS=(moesim pla) COMP_CWORD=1 && _moesim && [[ ${COMPREPLY[*]} == "plan place" ]]) ||
  fail "completion of a verb"
"$moesim" completion zsh | tail -n +2 | cmp - <("$moesim" completion bash) || fail "zsh completes otherwise than bash"
"$moesim" completion fish | grep -q "^complete -c moesim -n '__fish_seen_subcommand_from run' -l steps -d 'write a line per step, CSV'$" || fail "completion of fish"
refuses "completion of no shell" 'SHELL: ' completion tcsh

# Steps for another scheduler: twice the same bytes, and a wrong line is refused.
step='{"ranks":[{"new":[1,512],"context":[90,0]},{},{},{},{},{},{},{}]}'
printf '%s\n\n%s' "$step" "$step" | "$moesim" price "$config" >"$work/priced" 2>/dev/null || fail "price"
printf '%s\n%s\n' "$step" "$step" | "$moesim" price "$config" 2>/dev/null | cmp - "$work/priced" || fail "price: not the same bytes"
(($(grep -c '"seconds":[0-9].*"holds":"mixed".*"activated":' "$work/priced") == 2)) || fail "price: $(cat "$work/priced")"
refuses_line() { printf '%s\n' "$2" >"$work/in"; refuses "price: $2" "$1" price "$config" <"$work/in"; }
refuses_line '^moesim: batch 1:/: is not JSON' '{'
refuses_line 'batch 1:/ranks: has 1 ranks, and the deployment 8' '{"ranks":[{}]}'
refuses_line 'batch 1:/ranks: no rank has a new token' '{"ranks":[{},{},{},{},{},{},{},{}]}'
refuses_line 'batch 1:/ranks/0: has other keys' "${step/context/past}"
refuses_line 'batch 1:/ranks/0: "new" and "context" must have' "${step/90,0/90}"
refuses_line 'batch 1:/ranks/0/new/1: expected a whole number from 1' "${step/512/5.5}"
code=0
printf '%s\n%s\n{\n%s\n' "$step" "$step" "$step" | "$moesim" price "$config" >"$work/out" 2>"$work/err" || code=$?
((code == 2)) && cmp "$work/out" "$work/priced" && grep -q 'batch 3:/: is not JSON' "$work/err" ||
  fail "price: the lines before a wrong one: exit $code: $(cat "$work/out" "$work/err")"
refuses "price: a socket in no folder" 'none/s: No such file or directory; name a path' price "$config" --socket "$work/none/s"
"$moesim" explain configs/agent_sessions_tiers.json --step prefill --samples 1 2>/dev/null |
  grep -q 'tier host: a load of 1,024 tokens takes 1.880 ms' || fail "explain: no time of a load from a tier"
# Tables keep to 100 columns where nothing says how wide the output is, as in a pipe, and to COLUMNS where that does.
"$moesim" explain configs/afd_deepseek_v3.json --sequences 8 --context 1000 --samples 1 2>/dev/null >"$work/text" || fail "explain with AFD"
(($(wc -L <"$work/text") <= 100)) || fail "explain with AFD and energy is wider than 100 columns: $(wc -L <"$work/text")"
two_kinds=(configs/afd_step3.json --set /cluster=h20x32 --set /ffn_cluster=h800x32)
"$moesim" explain "${two_kinds[@]}" --sequences 8 --context 1000 --samples 1 2>/dev/null >"$work/text" || fail "explain with two kinds of GPUs"
(($(wc -L <"$work/text") <= 100)) || fail "explain with two kinds of GPUs is wider than 100 columns: $(wc -L <"$work/text")"
"$moesim" check "${two_kinds[@]}" 2>/dev/null | grep -q 'on 16 GPUs of 32 x H20 in 4 nodes and, for experts, 16 of' || fail "check names both clusters"
COLUMNS=140 "$moesim" explain configs/afd_deepseek_v3.json --sequences 8 --context 1000 --samples 1 2>/dev/null |
  grep -q '^operation .* bound by .* link MB .* mJ$' || fail "explain: a table of 140 columns is not whole"
for engine in vllm sglang trtllm; do
  "$moesim" run configs/quick.json --launch $engine >"$work/text" 2>/dev/null || fail "run --launch $engine"
  (($(wc -L <"$work/text") <= 100)) || fail "run --launch $engine is wider than 100 columns: $(wc -L <"$work/text")"
done
# Link bytes are those of the mean GPU: no more than its link carries in that time, and much of it in a large step.
"$moesim" explain "$config" --step prefill --prefill-tokens 8192 --samples 1 --json 2>/dev/null | python3 -c '
import json, sys
[dispatch] = [o for o in json.load(sys.stdin)["operations"] if o["operation"] == "dispatch"]
rate = dispatch["link_bytes_mean"] / dispatch["seconds"]
assert 450e9 / 4 < rate < 450e9, rate
' || fail "explain: link bytes are not those of a GPU"
# A mixed step has the prompt of the load, cut to what decodes leave of the chunk.
mixed() { "$moesim" explain "$config" --step mixed --sequences 4 --context 70 --samples 1 "$@" 2>/dev/null; }
mixed | grep -q '^one mixed step of 4 decodes and 64 prompt tokens a rank' || fail "explain: a mixed step has another prompt"
mixed --set /workload/lengths/prompt=2000 | grep -q ' of 4 decodes and 508 prompt tokens a rank' || fail "explain: a mixed step above its chunk"
# Of pools, each explains its own steps; no step has both.
pools='/pools={"prefill":{"parallel":{"dp":4},"scheduling":{"type":"chunked_prefill","max_num_batched_tokens":512,"max_num_seqs":8}},"decode":{"parallel":{"dp":4},"scheduling":{"type":"decode_only","max_num_seqs":32}}}'
in_pools() { "$moesim" explain configs/quick.json --set "$pools" --set /placement/replication=1 --samples 1 "$@"; }
in_pools --step prefill 2>/dev/null | grep -q '^one prefill step of 512 prompt tokens a rank' || fail "explain: not the prefill pool's step"
in_pools --sequences 33 2>/dev/null | grep -q '^this step cannot run: 33 sequences' || fail "explain: 33 sequences where 32 run"
in_pools --step mixed 2>"$work/err" && fail "explain: a mixed step of two pools passed"
grep -q 'no step has both' "$work/err" || fail "explain: a mixed step of two pools: $(cat "$work/err")"
# explain names who is last, as the same step's layers have it.
"$moesim" explain "$config" --json 2>/dev/null | python3 -c '
import json, sys
held = json.load(sys.stdin)["held_up_by"]
wait = held["longest_wait"]
assert 0 <= held["rank"] < 8 and 24 / 8 <= held["last_in_layers"] <= held["moe_layers"] == 24, held
assert wait["mean_ms"] > 0 and wait["activated"] >= wait["mean_activated"] and 0 <= wait["layer"] < 24, held
' || fail "explain: who is last"
"$moesim" explain "$config" 2>/dev/null | grep -q "is the last with its experts in" || fail "explain: no straggler named"
# A step's content by options and by a file is one; a prompt behind a prefix takes longer, as does another prompt beside it.
echo '[{"prompts": [{"tokens": 64}]}, {"prompts": [{"tokens": 64, "prefix": 4096}]},
       {"prompts": [{"tokens": 64}, {"tokens": 32}]}, {"sequences": 2, "context": 64}]' >"$work/steps.json"
"$moesim" explain "$config" --steps "$work/steps.json" --samples 1 --json >"$work/steps.out" 2>/dev/null || fail "explain --steps"
"$moesim" explain "$config" --step prefill --prompts 64@4096 --samples 1 --json >"$work/prefix" 2>/dev/null || fail "explain --prompts"
"$moesim" explain "$config" --step prefill --prefill-tokens 64 --context 4096 --samples 1 --json 2>/dev/null |
  cmp - "$work/prefix" || fail "explain: a prompt's context is not its prefix"
python3 -c '
import json, sys
steps, prefix = (json.load(open(f)) for f in sys.argv[1:])
alone, behind, two, decode = steps
assert [s["kind"] for s in steps] == ["prefill"] * 3 + ["decode"], steps
assert alone["total_ms"] < behind["total_ms"] == prefix["total_ms"] and alone["total_ms"] < two["total_ms"], steps
' "$work/steps.out" "$work/prefix" || fail "explain: steps of a file"
echo '[{"sequences": 0}]' >"$work/steps.json"
"$moesim" explain "$config" --steps "$work/steps.json" 2>"$work/err" && fail "explain: an empty step passed"
grep -q 'steps.json:/0: the step is empty' "$work/err" || fail "explain: an empty step is not named: $(cat "$work/err")"
"$moesim" explain "$config" --step prefill --prompts 0 2>/dev/null
[ $? -eq 2 ] || fail "explain --prompts 0: another exit code than 2"

for verb in $("$moesim" --help | awk '/^  [a-z]/ {print $1}') "trace info" "trace generate"; do
  # shellcheck disable=SC2086
  "$moesim" $verb --help >"$work/text" || fail "$verb --help"
  (($(wc -L <"$work/text") <= 100)) || fail "$verb --help is wider than 100 columns: $(wc -L <"$work/text")"
done
for verb in validate reproduce "study regimes" sensitivity calibrate; do
  # shellcheck disable=SC2086
  (($("$moesim-lab" $verb --help | wc -L) <= 100)) || fail "moesim-lab $verb --help is wider than 100 columns"
done
(($(COLUMNS=70 "$moesim" run --help | wc -L) <= 70)) || fail "run --help is wider than a terminal of 70 columns"
for verb in list "check good.json" "explain good.json" "trace info trace"; do
  # shellcheck disable=SC2086
  (cd "$work" && "$moesim" $verb) >"$work/text" 2>/dev/null || fail "$verb"
  (($(wc -L <"$work/text") <= 100)) || fail "$verb is wider than 100 columns: $(wc -L <"$work/text")"
done
run --json --set '/capacity={"type":"delay","factor":1}' --set '/expert_buffers={"tokens_per_rank":40}' --set \
  '/expert_memory={"type":"lru","slots_per_layer":4,"host":{"bandwidth":"52 GB/s","latency":"10 us","source":"a test"}}' \
  >"$work/out" 2>/dev/null || fail "run with expert memory, capacity and small buffers"
python3 - "$work/out" <<'PY' || fail "report keys of expert memory, capacity and buffers"
import json, sys
report = json.load(open(sys.argv[1]))
memory = report["expert_memory"]
assert memory["misses"] > 0 and 0 < memory["hit_rate"] < 1 and memory["stall_seconds"] > 0
assert report["experts"]["delayed"] > 0 and report["expert_buffers"]["steps_cut"] > 0
PY
run --json --set '/workload/timeout="60 ms"' --set '/workload/ttft_timeout="20 ms"' --set \
  '/workload/cancellation={"share":0.3,"mean_after":"10 ms"}' --set /slo='{"ttft":"10 ms","tpot":"5 ms"}' \
  --requests "$work/left.csv" >"$work/out" 2>/dev/null || fail "run with clients that leave"
python3 - "$work/out" "$work/left.csv" <<'PY' || fail "report keys of clients that leave"
import csv, json, sys
m = json.load(open(sys.argv[1]))["metrics"]
assert m["completed"] + m["rejected"] + m["timed_out"] + m["cancelled"] == 60 and m["cancelled"] > 0
assert 0 < m["cancelled_share"] < 1 and set(m["attainment"]) == {"ttft", "tpot"}
assert sum(r["state"] == "cancelled" for r in csv.DictReader(open(sys.argv[2]))) == m["cancelled"]
PY
run --json --set '/scheduling={"type":"comm_aware","max_num_batched_tokens":512,"max_num_seqs":16,"target":"20 ms"}' --set \
  '/speculative={"num_speculative_tokens":2,"acceptance_rate":0.7}' >"$work/out" 2>/dev/null ||
  fail "run with drafts and a target time"
python3 - "$work/out" <<'PY' || fail "report keys of drafts"
import json, sys
report = json.load(open(sys.argv[1]))
assert report["metrics"]["completed"] == 60 and 1 < report["speculative"]["mean_acceptance_length"] < 3
assert report["speculative"]["draft_seconds"] > 0
PY
# What --requests wrote is a request trace.
python3 - "$work/good.json" "$work/replayed.json" <<'PY'
import json, sys
config = json.load(open(sys.argv[1]))
config["workload"]["arrivals"] = {"type": "trace", "file": "r.csv"}
del config["workload"]["lengths"], config["workload"]["requests"]
json.dump(config, open(sys.argv[2], "w"))
PY
"$moesim" run "$work/replayed.json" --json >"$work/out" 2>/dev/null || fail "a run's own requests do not run"
python3 -c 'import json, sys; assert json.load(open(sys.argv[1]))["metrics"]["completed"] == 60' "$work/out" ||
  fail "a run's own requests are not as many"
"$moesim" run "$work/good.json" --set '/rebalancing={"type":"eplb_async","step_interval":20}' \
  --set '/failures=[{"gpu":3,"at":"1 ms","recovers_after":"1 ms"}]' -o "$work/moved.json" >"$work/text" 2>/dev/null ||
  fail "run with experts on the move"
grep -Eq 'rebalanced [0-9]+ times' "$work/text" || fail "run does not say that experts moved"
grep -Eq 'GPU 3 stopped at 0.001 s, back at' "$work/text" || fail "run does not say that a GPU stopped"
(($(wc -L <"$work/text") <= 100)) || fail "run is too wide: $(wc -L <"$work/text")"
"$moesim" replay --trace "$work/trace" --gpus 8 --replication 1.0,1.5 --batch 8 >"$work/text" || fail "replay"
"$moesim" replay --trace "$work/trace" --gpus 8 --replication 1.5 --batch 8 --capacity drop:factor=1 --json \
  --expert-memory lru:slots_per_layer=2 >"$work/out" || fail "replay with capacity and expert memory"
"$moesim" replay --trace "$work/trace" --gpus 8 --replication 1.0,1.5 --batch 8 --csv "$work/rows.csv" --json \
  >"$work/out.json" || fail "replay --csv"
python3 - "$work/rows.csv" "$work/out.json" <<'PY' || fail "replay --csv is not what --json says"
import csv, json, sys
rows, said = list(csv.DictReader(open(sys.argv[1]))), json.load(open(sys.argv[2]))["rows"]
assert len(rows) == len(said) == 6
for row, other in zip(rows, said):
    assert list(row) == list(other)
    assert all(row[k] == ("" if v is None else v if isinstance(v, str) else repr(v)) or float(row[k]) == v
               for k, v in other.items()), (row, other)
PY
(($(grep -c '"hit_rate": 0\.' "$work/out") == 3)) || fail "replay: no hit rates"
(($(grep -c '"dropped": 0\.[0-9]*[1-9]' "$work/out") == 3)) || fail "replay: nothing dropped"
(($(wc -L <"$work/text") <= 110)) || fail "replay is too wide"

# Routings that do the same share a row; a batch that is too large for the trace is left out, and said.
"$moesim" replay --trace "$work/trace" --gpus 8 --batch 8,1000 >"$work/text" 2>"$work/err" || fail "replay of a large batch: $(cat "$work/err")"
grep -q 'batches of 1000 are left out: 24 of its 24 requests are usable' "$work/err" || fail "replay leaves out batches without a word: $(cat "$work/err")"
(($(grep -c '^eplb .* all ' "$work/text") == 1)) || fail "replay: rows alike are printed each: $(cat "$work/text")"

# A placement goes through every format and comes back; its file is scored, replayed and run.
"$moesim" place --policy coactivation --trace "$work/trace" --gpus 8 --replication 1.5 --format npy -o "$work/p.npy" ||
  fail "place"
from=npy
for to in trtllm vllm_ascend sglang npy; do
  "$moesim" place --placement "$work/p.$from" --gpus 8 --first-layer 2 --format $to -o "$work/next.$to" ||
    fail "place from $from to $to"
  [[ $to == npy ]] || mv "$work/next.$to" "$work/p.$to"
  from=$to
done
cmp "$work/p.npy" "$work/next.npy" || fail "a placement comes back changed"
"$moesim" place --placement "$work/p.npy" --trace "$work/trace" --score >"$work/text" || fail "place --score"
(($(wc -L <"$work/text") <= 100)) || fail "the score is too wide"
"$moesim" replay --trace "$work/trace" --gpus 8 --replication 1.5 --batch 8 --json \
  --placement linear,flat,from_file:file="$work/p.npy" >"$work/out" || fail "replay from_file"
(($(grep -c '"placement"' "$work/out") == 9)) || fail "replay: not three placements by three routings"
"$moesim" place --placement "$work/p.npy" --gpus 8 --format trtllm -o "$work/from0.trtllm" || fail "place from layer 0"
"$moesim" check "$work/good.json" --set '/placement={"type":"from_file","file":"from0.trtllm","gpus":8,"replication":1.5}' \
  >/dev/null || fail "check from_file"
refuses "npy to the terminal" 'npy needs a file' place --placement "$work/p.npy" --format npy
refuses "slots on unsaid GPUs" 'does not say how many GPUs' place --placement "$work/p.trtllm"
refuses "a policy without a load" 'needs --load FILE or --trace DIR' place --policy eplb --gpus 8

# What a file says is not overlooked for an option, and a cluster has its number of GPUs.
refuses "a count for a file" "names a file" run "$config" --requests 64
refuses "an engine beside a file" 'CONFIG excludes --engine' run configs/quick.json --engine sglang
refuses "GPUs of a cluster" 'excludes' plan --model olmoe_1b_7b --cluster h200x16 --gpus 2 --ttft 1s

# A GPU may be a file of one's own.
python3 -c 'import json, sys; gpu = json.load(open(sys.argv[1])); gpu.pop("profiles"), gpu.pop("sibling"); json.dump(gpu, open(sys.argv[2], "w"))' \
  hardware/gpus/h200.json "$work/mine.json"
"$moesim" run --model gpt_oss_20b --gpu "$work/mine.json" --concurrency 4 --isl 16 --osl 4 >"$work/out" 2>"$work/err" ||
  fail "--gpu FILE: $(cat "$work/err")"
"$moesim" check --model qwen3_30b_a3b --gpu mi300x --tp 2 --engine trtllm --concurrency 4 >"$work/out" 2>"$work/err"
grep -q 'TensorRT-LLM does not run on MI300X' "$work/err" "$work/out" || fail "an engine that the GPU cannot run is not said"
"$moesim" run --model qwen3_30b_a3b --gpu mi300x --dp 4 --ep 4 --concurrency 16 --engine vllm --launch vllm --launch-only \
  --set /dispatch/decode=low_latency --set /scheduling/max_num_seqs=512 >"$work/out" 2>/dev/null
grep -q 'mori_low_latency' "$work/out" || fail "DeepEP on ROCm"

# A deployment as options: the same run as that of the file that check writes.
asked=(--model olmoe_1b_7b --gpu h100 --tp 2 --isl 100 --osl 20 --concurrency 8)
"$moesim" check "${asked[@]}" -o "$work/asked.json" >/dev/null 2>"$work/err" || fail "check of options: $(cat "$work/err")"
"$moesim" run "${asked[@]}" >"$work/out" 2>/dev/null || fail "run of options"
"$moesim" run "$work/asked.json" 2>/dev/null | cmp -s - "$work/out" || fail "options run another experiment than their file"
# warned_of PATTERN ARGS...: the check passes, and one of its warnings matches.
warned_of() {
  "$moesim" check "${asked[@]}" "${@:2}" >/dev/null 2>"$work/err" || fail "check ${*:2}: $(cat "$work/err")"
  grep -Eq -- "$1" "$work/err" || fail "check ${*:2}: \"$(cat "$work/err")\" does not match \"$1\""
}
too_long=(--max-model-len 2M --set /workload/lengths/prompt=1900000)
warned_of 'max_num_batched_tokens: 64; vLLM does not start with fewer tokens than max_num_seqs, which is 1024' \
  --engine vllm --set /scheduling/max_num_batched_tokens=64
warned_of 'the longest request of 1900019 tokens needs [0-9]+ KV blocks, a rank has [0-9]+: such a request is rejected' \
  "${too_long[@]}"
warned_of 'a request of 8388608 tokens needs 524288 KV blocks, .*: vLLM does not start so' --engine vllm --max-model-len 8M
"$moesim" check "${asked[@]}" --engine vllm --max-model-len 8k 2>&1 >/dev/null | grep -E 'does not start|is rejected' &&
  fail "a deployment that starts is said not to"
"$moesim" run "${asked[@]}" "${too_long[@]}" 2>/dev/null | grep 'trust:' &&
  fail "a run of no step is said to rest on measurements"
refuses "a deployment without a load" '^moesim: --concurrency or --rate is missing; without CONFIG' run --model olmoe_1b_7b --gpu h100
refuses "a deployment beside a file" 'CONFIG excludes --model' run "$config" --model olmoe_1b_7b
for id in nvidia/DeepSeek-R1-0528-NVFP4:deepseek_v3:nvfp4 Qwen/Qwen3-235B-A22B-Instruct-2507-FP8:qwen3_235b_a22b:fp8_block \
  nvidia/Qwen3-30B-A3B-FP8:qwen3_30b_a3b:fp8 zai-org/GLM-4.6-FP8:glm_4_6:fp8; do
  IFS=: read -r named model precision <<<"$id"
  "$moesim" check --model "$named" --gpu b200 --tp 8 --concurrency 8 2>&1 | grep -qF "$named is $model in $precision" || fail "$named is not $model"
done
refuses "a GPU that is not known" 'h1000.*did you mean "h100' run --model olmoe_1b_7b --gpu h1000 --concurrency 8

# Bad usage.
"$moesim" | grep -q "^What goes in$" || fail "no verb: the list of verbs is not printed"
"$moesim" help | cmp - <("$moesim" --help) || fail "help is not --help"
"$moesim" help explain | cmp - <("$moesim" explain --help) || fail "help VERB is not VERB --help"
refuses "help of a misspelt verb" 'did you mean "run"\?' help rum
refuses "unknown verb" 'no verb "fly"; one of: run, ' fly
refuses "a misspelt verb" 'no verb "rum"; did you mean "run"\?' rum "$config"
refuses "a file for a verb" 'good.json is a file; to simulate it: moesim run .*good.json' "$config"
refuses "unknown option" "bogus" run "$config" --bogus
refuses "a misspelt option" 'moesim run has no --outptu; did you mean --output\?' run "$config" --outptu=x
refuses "a misspelt option that is required" 'moesim plan has no --modle; did you mean --model\?' plan --modle qwen3_30b_a3b
refuses "two changes after one --set" 'write --set again before the next: --set /seed=2' run "$config" --set /seed=1 /seed=2
refuses "a change in two words" '--set lengths: expected /pointer=value in one word' run "$config" --set lengths 2k
ln -s "$PWD/models/zoo/gpt_oss_20b.json" "$work/here.json"
(cd "$work" && mkdir -p deep && cp good.json deep/ && "$moesim" check deep/good.json --set /model=here.json 2>&1) |
  grep -q 'deep/good.json:/model: no file is called "deep/here.json"; paths go by the folder of the config; the one in the working directory is /.*/here.json' ||
  fail "a path by the working directory is not told apart"
refuses "a key beside pools" '--set /parallel/tp: has no effect, because both pools have their own "parallel"; set /pools/prefill/parallel/tp or' \
  check configs/quick.json --set "$pools" --set /placement/replication=1 --set /parallel/tp=2
python3 -c 'import json, sys
config = json.load(open("configs/quick.json")) | {"pools": json.loads(sys.argv[1].split("=", 1)[1])}
json.dump(config, open(sys.argv[2], "w"))' "$pools" "$work/beside.json"
refuses "a key beside pools in a file" 'beside.json:/parallel: has no effect, because both pools have their own; leave it out' check "$work/beside.json"
refuses "an attainment in percent" '--attainment: 90 is out of range; expected a share above 0 and at most 1; 90 % is 0.9' \
  plan --model qwen3_30b_a3b --gpu h100 --tpot 50ms --attainment 90
refuses "more copies than GPUs" 'replication 100 is out of range; expected 1 to 8, at which each of 8 GPUs holds every expert' \
  replay --trace "$work/trace" --gpus 8 --batch 8 --replication 1,100
several=configs/two_models.json
refuses "several models in a verb of one" 'with --deployment NAME .run., .check., .explain. and' explain "$several"
refuses "steps of several models" '--steps: is of one deployment' run "$several" --steps "$work/steps.csv"
refuses "an unknown deployment" 'none is called "caht"; there are: chat, code' check "$several" --deployment caht
refuses "a deployment of one model" 'has no "deployments"; leave out' run "$config" --deployment chat
refuses "unknown kind" 'no kind "colour"; one of: placement' list colour

# Bad configs: where, what, what would be right.
set_refused() { refuses "$2" "$3" check "$config" --set "$1"; }
refuses "no file" "no such file" run "$work/none.json"
refuses "a directory" "not a regular file" run "$work"
echo '{"a": 1,}' >"$work/broken.json"
refuses "not JSON" "not JSON: line 1" run "$work/broken.json"
set_refused '/cluster="a100"' "a family of clusters" 'no cluster is called "a100"; did you mean "a100_40g_x8" or "a100_80g_x8"\?'
set_refused '/cluster=h100x9' "an unknown cluster" 'cluster: no file and no cluster is called "h100x9"; give "h100x16": "parallel" may take 9 of its 16 GPUs.*moesim list clusters'
set_refused '/model=Qwen/Qwen3-30B-A3' "an unknown model" 'model: no file and no model is called .*did you mean "qwen3_30b_a3b"'
set_refused '/cluster=none.json' "a cluster's file that is not there" 'none.json: no such file'
set_refused '/workload/arrivals={"type":"poisson"}' "a missing key" '"rate" is missing \(requests per second: one rate, or spans\)'
set_refused '/placement/replicaton=1.5' "unknown key" 'good.json:/placement: unknown key "replicaton"; did you mean "replication"'
set_refused '/token_routing/decode="metor"' "unknown policy" 'did you mean "metro"\? one of: '
set_refused '/workload/arrivals/rate=12' "a number without a unit" 'good.json:/workload/arrivals/rate: .*unit'
set_refused '/workload/arrivals/rate="12"' "a text without a unit" 'rate: "12" has no unit \(expected e.g. "12 /s"\)'
set_refused '/placement/replication=0.5' "replication below 1" 'replication: 0.5 is out of range'
set_refused '/placement={"type":"eplb","replication":1.3,"strict":true}' "replication that does not divide" 'next ratio that does is 1.5'
set_refused '/dispatch/decode="all_to_all"' "metro without global counts" '"metro" needs .*ids_all_gather'
set_refused '/dispatch/decode="alltoall"' "unknown dispatch" 'did you mean "all_to_all"'
set_refused '/capacity="drop"' "a capacity without a factor" 'capacity: .*factor'
set_refused '/expert_memory="lru"' "an expert memory without a size" 'expert_memory: expected one of "slots_per_gpu"'
set_refused '/expert_buffers={"tokens_per_rank":4096}' "buffers beyond the scheduler's step" 'tokens_per_rank: 4096 is out of'
set_refused '/parallel={"dp":16,"tp":1,"ep":16}' "more GPUs than there are" 'dp \* tp = 16 GPUs, but 8 x H100 has 8'
set_refused "/model=\"$PWD/models/zoo/qwen3_30b_a3b.json\"" "a trace of another model" 'trace.*(128|experts|adapt)'
set_refused '/kv_cache={"gpu_memory_utilization":0.02}' "a model that does not fit" 'does not fit: [0-9.]+ GB missing per GPU'
set_refused '/workload/timeout="0 s"' "no patience at all" 'timeout: must be above zero'
set_refused '/workload/arrivals/rate=[{"rate":"5 /s","until":"9 s"}]' "a schedule that ends" 'must end with a rate without "until"'
set_refused '/speculative={"num_speculative_tokens":40,"acceptance_rate":0.5}' "more drafts than a step holds" '656 tokens, more than'
set_refused '/workload/lengths/prompt=0' "an empty prompt" 'prompt: 0 is out of range'
set_refused '/workload/requests=-1' "negative requests" 'requests: -1 is out of range'
refuses "an override into nothing" 'unknown key "no"' check "$config" --set /no/such/place=1
refuses "an override into a list" 'nothing at "/workload/arrivals/rate"' check "$config" \
  --set '/workload/arrivals/rate=[]' --set /workload/arrivals/rate/1=2
"$moesim" check "$config" --set /kv_cache/block_size=8 >/dev/null || fail "an override into an absent object"
refuses "an override without a value" 'expected /pointer=value' check "$config" --set /seed

# Bad traces: each damages a copy.
damaged() {
  rm -rf "$work/bad" && cp -r "$work/trace" "$work/bad"
  (cd "$work/bad" && python3 -c "
ids = open('topk_ids.npy', 'rb').read() if True else b''
def rewrite(data): open('topk_ids.npy', 'wb').write(data)
$1") || fail "could not prepare: $2"
  refuses "$2" "$3" replay --trace "$work/bad" --gpus 8
}
damaged 'import os; os.remove("topk_ids.npy")' "a missing npy" 'topk_ids.npy: .*[Nn]o such file'
damaged 'rewrite(ids[:-100])' "a cut-short npy" 'topk_ids.npy: .*bytes'
damaged 'rewrite(ids[:40])' "a cut-short header" 'topk_ids.npy: '
damaged 'rewrite(ids.replace(b"|u1", b"<f4"))' "a wrong dtype" 'topk_ids.npy: '
damaged 'rewrite(ids.replace(b", 24, 4)", b", 4, 24)"))' "a wrong shape" 'topk_ids.npy: '
damaged 'rewrite(ids[:-1] + bytes([200]))' "an expert out of range" 'topk_ids.npy: .*200'
damaged 'open("requests.jsonl", "a").write("nonsense\n")' "a broken request line" 'requests.jsonl:25'
damaged 'open("meta.json", "w").write("{}")' "an empty meta" 'meta.json'

# Hostile input: one line and exit 2, whatever it is.
python3 -c 'print("[" * 1000000)' >"$work/deep.json"
mkfifo "$work/pipe"
ln -s loop "$work/loop"
: >"$work/empty"
for verb in run check explain sweep "place --placement" "trace info" "report -o $work/page.html" pareto \
  "replay --routing even --placement $work/p.npy --tokens" "calibrate --gpu h100 -o $work/gpu.json --points"; do
  for input in deep.json pipe loop empty none .; do
    # shellcheck disable=SC2086
    refuses "$verb $input" . $verb "$work/$input"
  done
done
refuses "a name of two lines" 'a\\u000ab: no such file' sweep $'a\nb' -o "$work/two_lines.sqlite"
refuses "a directory with a trace in it" 'trace: exists already' trace generate --model models/zoo/gpt_oss_20b.json \
  --gating uniform -o "$work/trace"
refuses "more ids than fit" 'expert ids of gpt-oss-20b' trace generate --model models/zoo/gpt_oss_20b.json -o "$work/t2" \
  --gating '{"type": "uniform", "requests": 1000000, "prompt_rows": 1000000}'
printf '{"num_gpus": 2, "num_experts": 3, "experts_on_gpu": [[[0, 1], [2]]]}' >"$work/three.json"
printf '{"topk_ids": [[[0, 1], [2, 2]]]}' >"$work/twice.json"
refuses "an expert twice in a token" 'topk_ids/0/1/1: expert 2 twice' replay --routing even --placement "$work/three.json" \
  --tokens "$work/twice.json"

# Keys, for people and for editors.
"$moesim" keys >"$work/keys" || fail "keys: exit $?"
(($(wc -l <"$work/keys") <= 40)) && grep -q '^/slo ' "$work/keys" && grep -q ' /kv_cache/prefix_caching' "$work/keys" || fail "basic and usual keys"
"$moesim" keys PREFIX | grep -q '^/kv_cache/prefix_caching ' || fail "keys PREFIX does not find prefix_caching"
"$moesim" keys --all >"$work/keys" || fail "keys --all: exit $?"
(($(wc -L <"$work/keys") <= 100)) || fail "keys are wider than 100 columns"
"$moesim" keys --schema | python3 -c 'import json, sys; assert json.load(sys.stdin)["properties"]["seed"]["default"] == 1' ||
  fail "keys --schema"
"$moesim" run --help | grep -q 'moesim keys' || fail "run --help says nothing of keys"
refuses "a schema of a part" 'is of a whole file' keys placement --schema
refuses "a sweep run as an experiment" 'this is a sweep, not an experiment' run configs/quick_sweep.json
"$moesim" keys /workload/arrivals/rate | grep -q '^options of gamma, a policy of arrivals' || fail "keys of a pointer into a policy"
"$moesim" keys /pools/decode/parallel/tp | grep -q '^/parallel/tp ' || fail "keys of a pointer into a pool"
refuses "keys of nothing" 'did you mean "placement"\?' keys plcement
refuses "keys of a misspelt policy" 'did you mean "metro"\?' keys metor

# A batch that holds the same recording several times activates too few experts, and the run says so.
few_recordings() { "$moesim" run configs/quick.json --set /workload/requests=256 "$@" 2>&1 >/dev/null | grep -q "more requests are in flight than the"; }
few_recordings --set /workload/gating/requests=96 || fail "48 recordings for 256 requests in flight: not a word"
few_recordings && fail "recordings for all requests in flight: a warning"
"$moesim" what-if configs/quick.json --set /workload/requests=256 --set /workload/gating/requests=96 2>&1 >/dev/null |
  grep -q "more requests are in flight than the 48 recordings" || fail "what-if: 48 recordings for 256 requests in flight: not a word"
"$moesim" what-if configs/engine_gpt_oss.json --engine sglang --json >"$work/out" 2>"$work/err" && grep -q '/engine/version' "$work/out" ||
  fail "what-if --engine: $(cat "$work/err")"
sed -e 's/"type": "chunked_prefill", //' -e 's/"seed": 1/"engine": {"name": "vllm"}, "seed": 1/' "$work/good.json" >"$work/no_scheduler.json"
"$moesim" what-if "$work/no_scheduler.json" --engine sglang >"$work/out" 2>"$work/err" || fail "what-if --engine, no scheduler named: $(cat "$work/err")"
# METRO changes the dispatch only where not all choices are known.
sed 's/"decode": "metro"/"decode": "even"/; s/{"type": "all_gather"}/"ids_all_gather"/' "$work/good.json" >"$work/even.json"
"$moesim" what-if "$work/even.json" --metro --json >"$work/out" 2>/dev/null || fail "what-if --metro"
grep -q '/token_routing/decode' "$work/out" && ! grep -q '/dispatch' "$work/out" || fail "what-if --metro changes a dispatch that tells all choices"
sed 's/"ids_all_gather"/"all_to_all"/' "$work/even.json" >"$work/apart.json"
"$moesim" what-if "$work/apart.json" --metro --json 2>/dev/null | grep -q '/dispatch/decode' || fail "what-if --metro, all-to-all"
sed 's/"scheduling": {[^}]*}/"scheduling": "chunked_prefill"/' "$work/good.json" >"$work/named_scheduler.json"
refuses "what-if --engine, a scheduler by its name alone" '/scheduling: "max_num_batched_tokens" is missing' what-if "$work/named_scheduler.json" --engine sglang

# Only what changes is printed; a key can be taken away; a GPU can fail.
"$moesim" what-if "$work/good.json" --set /seed=1 --set /workload/requests=61 >"$work/out" 2>/dev/null || fail "what-if of one more request"
! grep -qE '[+]0[.]000$' "$work/out" || fail "what-if prints parts that do not change: $(cat "$work/out")"
! grep -q 'SLO' "$work/out" || fail "what-if: a share within limits where there are none"
"$moesim" what-if "$work/good.json" --set /placement=null --json 2>/dev/null | grep -q '"op": "remove"' || fail "what-if does not take a key away"
refuses "a key that is not there taken away" 'no such key to take away' what-if "$work/good.json" --set /overlap=null
sed 's/"seed": 1/"fidelity": "sampled", "seed": 1/' "$work/good.json" >"$work/sampled.json"
"$moesim" what-if "$work/sampled.json" --fail gpu=1,at=100ms,for=100ms >"$work/out" 2>"$work/err" || fail "what-if --fail: $(cat "$work/err")"
grep -q '^GPU 1.* stopped at 0.100 s, back at 0.20' "$work/out" || fail "what-if --fail: $(cat "$work/out")"
refuses "a failure without a time" '--fail gpu=1: the time from the start of the run is missing' what-if "$work/good.json" --fail gpu=1
refuses "a failure of nothing" '--fail at=1s: what stops is missing' what-if "$work/good.json" --fail at=1s

# Commands alone, and as files: scripts that a shell reads, manifests with what Kubernetes' API asks for.
run --launch vllm --launch-only >"$work/out" 2>/dev/null || fail "run --launch-only"
grep -q '^vllm serve' "$work/out" && ! grep -q '^throughput' "$work/out" || fail "--launch-only: $(cat "$work/out")"
run --launch vllm --launch-to "$work/deploy" --set '/parallel={"dp":4,"ep":4}' --set /instances=2 >"$work/out" 2>/dev/null || fail "run --launch-to"
for script in server-0 server-1 router benchmark; do bash -n "$work/deploy/$script.sh" || fail "--launch-to: $script.sh"; done
grep -q '"image": "vllm/vllm-openai"' "$work/deploy/server-0.json" && (($(ls "$work"/deploy/*.json | wc -l) == 2)) || fail "--launch-to: two servers"
python3 tests/manifests.py "$work/deploy" || fail "--launch-to: manifests"

# A model is no experiment, and the message names what takes one.
refuses "a model for an experiment" 'this is a model, not an experiment; run, explain and check take --model' check models/zoo/olmoe_1b_7b.json
# Files of a clone are found beside the program's data.
(cd "$work" && "$moesim" check configs/quick.json >out 2>err && grep -q 'configs/quick.json: taken from' err) || fail "configs/quick.json elsewhere: $(cat "$work/err")"

# Published figures: exit 3 when a verdict is not the one in the file.
refuses "no figure" 'expected names of figures, or --all' reproduce
refuses "an unknown figure" 'no figure is called' reproduce fig_0
"$moesim-lab" reproduce metro_fig04_toy >"$work/out" 2>/dev/null || fail "reproduce: exit $?"
grep -q 'published 2, simulated 2.000x: within band' "$work/out" || fail "reproduce: $(cat "$work/out")"
sed 's/"verdict": "within band"/"verdict": "not reproduced", "reason": "none"/' configs/reproduce/metro_fig04_toy.json \
  >"$work/toy.json"
"$moesim-lab" reproduce --folder "$work" toy >/dev/null 2>&1
(($? == 3)) || fail "reproduce: a changed verdict does not exit 3"

# Streams that the caller closed take no descriptor of a file that is written.
"$moesim" run "$config" --timeline "$work/closed.json" --steps "$work/closed.csv" >/dev/null 2>&- ||
  fail "run with stderr closed: exit $?"
python3 -c 'import json, sys; json.load(open(sys.argv[1]))' "$work/closed.json" ||
  fail "stderr closed: messages stand in the timeline"
head -1 "$work/closed.csv" | grep -q '^step,' || fail "stderr closed: messages stand among the steps"
"$moesim" run "$config" --timeline "$work/closed.json" <&- >&- 2>&-
(($? == 1)) || fail "run with everything closed does not say by its exit code that results went nowhere"
"$moesim" run "$config" --json >&- 2>"$work/err"
(($? == 1)) && grep -q 'could not be written to stdout' "$work/err" || fail "stdout closed: $(cat "$work/err")"

# Sizes beyond reason.
refuses "a batch beyond memory" 'not in range' replay --trace "$work/trace" --gpus 8 --batch 2000000000 --sample several
refuses "batches beyond memory" 'batches of at most 64' replay --trace "$work/trace" --gpus 8 --batch 100 \
  --batches 1048576 --sample several
refuses "slots beyond reason" '65536 slots in a layer; expected at most 4096 on that many' place --policy flat \
  --trace "$work/trace" --gpus 65536 --replication 128
refuses "GPUs beyond reason" 'not in range' place --policy flat --trace "$work/trace" --gpus 1048576
refuses "nodes beyond reason" 'not in range' place --policy flat --trace "$work/trace" --gpus 8 --nodes 1000000000
cp -r "$work/trace" "$work/many" && sed -i 's/"num_experts": 32/"num_experts": 65536/' "$work/many/meta.json"
# ASan reserves terabytes of addresses for itself: no limit under it.
address_space=4000000
! grep -q __asan_init "$moesim" || address_space=unlimited
(ulimit -v "$address_space" && "$moesim" trace info "$work/many") >/dev/null 2>"$work/err" ||
  fail "trace info of 65,536 experts: $(cat "$work/err")"
refuses "pairs of 65,536 experts" 'expected at most 4096' place --policy coactivation --trace "$work/many" --gpus 8

# What is wrong is said where it stands.
set_refused '/cluster="a\u0000b"' "a name with a NUL" 'good.json:/cluster: "a.u0000b" has a NUL'
set_refused $'/workload/gating/preset=\xff' "a value that is not UTF-8" '--set .*/workload/gating/preset=.*expected text in UTF-8'
sed 's/"seed": 1/"seed": 1, "seed": 2/' "$config" >"$work/twice_config.json"
refuses "a key twice" 'twice_config.json: "/seed" is there twice' check "$work/twice_config.json"
refuses "a store called as a table" 'table.csv: results are kept in a SQLite file; name it .*table.sqlite' \
  sweep configs/quick_sweep.json -o "$work/table.csv"
[[ ! -e "$work/table.csv" ]] || fail "a refused store was begun"
refuses "a store without a name" 'the store has no name' sweep configs/quick_sweep.json -o ""
cp "$config" "$work/own.json"
refuses "a report over its config" 'CONFIG and -o name one file' run "$work/own.json" -o "$work/own.json"
cmp -s "$config" "$work/own.json" || fail "a config is lost"
printf 'SQLite format 3\0' >"$work/kept.sqlite"
refuses "a report over a store" 'is a store of results' run "$config" -o "$work/kept.sqlite"
mkfifo "$work/fifo"
refuses "a report into a pipe" 'not a regular file' run "$config" -o "$work/fifo"
for bad in "--price nan" "--price -1" "--attainment 0" "--attainment nan" "--acceptance nan"; do
  # shellcheck disable=SC2086
  refuses "plan $bad" "${bad% *}: .*(out of range|not a number)" plan --model olmoe_1b_7b --gpu h100 --gpus 1 --isl 256 --osl 16 --ttft 1s $bad
done
refuses "one file for two outputs" '-o and --profile name one file' run "$config" -o "$work/one" --profile "$work/../$(basename "$work")/one"
printf '{"base": "%s", "axes": {"/workload/arrivals/rate": [100, 200]}, "set": {"/slo": {"ttft": "1 s"}}}' "$config" >"$work/tune.json"
refuses "rates without a unit" 'json:/workload/arrivals/rate: expected a (rate|number) with its unit' tune "$work/tune.json"
printf 'id,category,gpu,n_gpu,n_node,model,op,precision,tp,ep,tokens,distribution,active_experts_rank,metric,value,unit\n%s\n' \
  'a,moe_kernel,A100-SXM4-80GB,1,1,Qwen3-30B-A3B,fused_moe,bfloat16,1,2,1024,balanced,64,kernel_time,937,us' >"$work/points.csv"
"$moesim-lab" validate --points "$work/points.csv" --json | grep -q '"failed": 0' || fail "validate"
refuses "points without their hardware" 'nowhere/hardware/gpus/a100.*json: no such file' validate --points "$work/points.csv" \
  --root "$work/nowhere"

refuses "contrasts of nothing" 'no two of 0 predicted runs .* differ in one thing' validate --points "$work/points.csv" --contrasts
{ echo id,category,gpu,n_gpu,n_node,model,op,precision,tp,ep,dp,isl,osl,metric,value,unit
  for gpu in H100-SXM-80GB,7500 H200-SXM-141GB,9000; do
    echo "${gpu%,*},e2e,${gpu%,*},1,1,gpt-oss-20b,trtllm-bench offline max throughput,w4a8,1,1,1,1024,1024,output_tok_s_per_gpu,${gpu#*,},tok/s/GPU"
  done; } >"$work/pair.csv"
"$moesim-lab" validate --points "$work/pair.csv" --contrasts --csv "$work/pairs.csv" --scorecard "$work/card.md" >"$work/text" ||
  fail "validate --contrasts"
grep -Eq '^gpu +h100 against h200 +1 ' "$work/text" || fail "validate --contrasts: $(cat "$work/text")"
grep -q '^gpu,H100-SXM-80GB,H200-SXM-141GB,h100,h200,0.83333,' "$work/pairs.csv" || fail "a line per pair: $(cat "$work/pairs.csv")"
grep -q '^|gpt-oss-20b|h200|trtllm, offline|' "$work/card.md" || fail "the scorecard: $(cat "$work/card.md")"

# Interrupted, a run takes what it has not finished with it.
python3 - "$moesim" "$config" "$work" <<'PY' || fail "an interrupted run"
import glob, signal, subprocess, sys, time
moesim, config, work = sys.argv[1:]
for number in signal.SIGINT, signal.SIGTERM:
    run = subprocess.Popen([moesim, "run", config, "--set", "/workload/requests=200000", "--steps", f"{work}/i.csv",
                            "--timeline", f"{work}/i.json"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                           preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL))
    while len(glob.glob(f"{work}/i.*.tmp")) < 2 and run.poll() is None: time.sleep(.01)
    run.send_signal(number)
    assert run.wait() == -number, run.returncode
    assert not glob.glob(f"{work}/i.*"), glob.glob(f"{work}/i.*")
PY

# Seeds, sessions and lengths of a plan.
plan=(plan --model olmoe_1b_7b --gpu h100 --gpus 1 --ttft 1s)
refuses "plan of sessions and lengths" '--isl excludes --sessions' "${plan[@]}" --sessions chat --isl 100
refuses "plan with a seed below zero" '--seed: "-1" is no seed; expected a whole number from 0' "${plan[@]}" --seed -1
printf '{"session_id": 1, "input_length": %s, "output_length": 2}\n' 1000000000 1000000000 >"$work/long.jsonl"
timeout 20 "$moesim" trace info "$work/long.jsonl" --id-block 1 | grep -q 'Reuse is not told: prompts have 2000000000 blocks of 1 tokens' ||
  fail "trace info of prompts without end"

# Nothing half-written; missing folders appear with what they hold, and not before.
refuses "an unwritable report" 'cannot be written' run "$config" -o "$work/text/report.json"
refuses "an unwritable timeline" 'cannot be written' run "$config" --timeline "$work/text/none/t.json"
refuses "unwritable steps" 'cannot be written' run "$config" --steps "$work/text/s.csv"
refuses "a page of no store" 'there is no such store' report "$work/none.sqlite" -o "$work/page.html"
refuses "an unwritable page" 'cannot be written' report "$work/none.sqlite" -o "$work/text/page.html"
refuses "a config with an error" 'unknown key' run "$config" --set /clustr=1 -o "$work/none/report.json" --steps "$work/none/s.csv"
refuses "an unknown model" 'no_such_model' plan --model no_such_model --gpu h100 --ttft 1s -o "$work/none/plan"
refuses "an experiment instead of a sweep" '.' sweep "$config" -o "$work/none/six.sqlite"
refuses "a page of no store in a new folder" 'there is no such store' report "$work/none.sqlite" -o "$work/none/page.html"
[[ -e $work/none ]] && fail "a folder appeared"
run -o "$work/new/folder/report.json" --steps "$work/new/s.csv" >/dev/null 2>&1 || fail "no folder for a report"
cmp "$work/a" "$work/new/folder/report.json" || fail "another report in a new folder"
ls "$work"/*.tmp >/dev/null 2>&1 && fail "a temporary file stayed"

if ((failures > 0)); then
  echo "$failures failed" >&2
  exit 1
fi
echo "all good"
