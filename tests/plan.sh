#!/usr/bin/env bash
# Does one line lead from a model to a deployment that meets its SLO when it is run alone?
#   tests/plan.sh MOESIM
set -euo pipefail
moesim=$(realpath "$1")
work=$(mktemp -d -p /dev/shm moesim-plan.XXXXXX 2>/dev/null || mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
fail() { echo "FAILED: $*" >&2; exit 1; }

ask=(plan --model Qwen/Qwen3-30B-A3B --gpu h100 --gpus 2 --isl 200 --osl 40 --ttft 300ms --tpot "30 ms" --no-page -o plan.json)
"$moesim" "${ask[@]}" --json >found.json 2>log || fail "$(tail -n 1 log)"
"$moesim" run plan.json --json >alone.json 2>log || fail "the deployment does not run: $(tail -n 1 log)"
requests=$(python3 -c 'import json; print(4 * json.load(open("plan.json"))["workload"]["requests"])')
"$moesim" run plan.json --set /workload/requests="$requests" --seed 77 --json >longer.json 2>log || fail "$(tail -n 1 log)"
python3 - <<'PY'
import json
plan, alone = (json.load(open(f)) for f in ("found.json", "alone.json"))
best = plan["best"][0]
rates = [p["rate"] for p in plan["best"]]
assert {"pools" in p["config"] for p in plan["best"]} == {True, False}, "one of each kind"
assert all(p["state"] == "stable" for p in plan["best"])
assert 0 < plan["choices"]["signs"][0]["right"] <= plan["choices"]["signs"][0]["pairs"], plan["choices"]
assert rates == sorted(rates, reverse=True) and 2 <= len(rates) <= 5, rates
along = alone["measurement"]["attainment"]
assert alone["metrics"]["slo_attainment"] - along["standard_error"] >= .9, along
assert along["second_half"] >= .9 and alone["measurement"]["state"] == "stable", alone["measurement"]
# It lasts: four times as long, under another seed.
longer = json.load(open("longer.json"))
assert longer["metrics"]["slo_attainment"] >= .87, longer["metrics"]["slo_attainment"]
# A few more requests are too many, and it says what they miss.
assert best["heavier"]["slo_attainment"] < .98 and best["heavier"]["binds"] in ("capacity", "TPOT", "TTFT"), best["heavier"]
assert alone["metrics"]["p90_tpot_ms"] == best["metrics"]["p90_tpot_ms"], "run alone it is another"
assert 8 < best["experts"]["active_experts_mean"] < best["experts"]["uniform_experts_mean"] <= 128, best["experts"]
assert best["config"]["request_routing"] == "round_robin", "requests go to ranks as the printed commands deal them"
limits = {"ttft": 300, "tpot": 30}
for p in plan["best"]:
    for name, limit in limits.items():
        assert abs(1 - p["metrics"][f"p90_{name}_ms"] / limit - p["margins"][name]) < 1e-9
print(f"{best['shape']}: {best['rate']:.4g} /s, {plan['runs']} runs of {plan['fit']} shapes that fit")
PY
# Asked again, nothing is run again; another question is refused; the store draws as a sweep's does.
"$moesim" "${ask[@]}" --json >again.json 2>log || fail "$(tail -n 1 log)"
grep -q 'runs were done before' log || fail "nothing is resumed: $(tail -n 1 log)"
cmp -s found.json again.json || fail "asked again, it says something else"
code=0; "$moesim" "${ask[@]/40/50}" >/dev/null 2>log || code=$?
((code == 2)) && grep -q 'holds the runs of another question' log || fail "another question takes the store: exit $code"
"$moesim" pareto plan.sqlite --by /parallel/tp >/dev/null 2>log || fail "the store: $(tail -n 1 log)"
# In letters, with the engines' own commands.
"$moesim" "${ask[@]}" --launch vllm >vllm 2>log || fail "--launch vllm: $(tail -n 1 log)"
(($(grep -v '^#' vllm | wc -L) <= 100)) || fail "plan is wider than 100 columns"
for engine in sglang trtllm; do
  "$moesim" run plan.json --launch $engine >$engine 2>log || fail "--launch $engine: $(tail -n 1 log)"
done
grep -Eq '^1: .*; (capacity|TPOT|TTFT) binds; ' vllm || fail "it does not say what binds"
grep -Eq '^experts active in a layer of a decode step of 1: [0-9.]+ of 128 \(uniform routing: ' vllm || fail "it does not count experts"
tr -s '\n ' ' ' <vllm | grep -q 'by the statistics of Qwen3 (gating preset qwen3)\. ' || fail "it does not say whose routing it takes"
tr -s '\n ' ' ' <vllm | grep -q '^Qwen3-30B-A3B (experts bf16, other weights bf16, .*) on 2 x ' || fail "it does not say in which precision"
grep -q '^trust: ' vllm || fail "it says nothing of trust"
grep -Eq '^choices: in pairs of measured runs' vllm || fail "it does not say how often validation found the better layout"
joined() { sed -e ':a' -e '/\\$/{N;s/\\\n//;ba' -e '}' "$1"; }  # commands go on behind a backslash
grep -q '^vllm serve Qwen/Qwen3-30B-A3B' vllm && joined vllm | grep -q 'vllm bench serve .*--random-input-len 200' || fail "no command of vLLM"
joined sglang | grep -q 'sglang.launch_server .*--tp-size' || fail "no command of SGLang"
joined trtllm | grep -q '^trtllm-serve .*--tp_size' || fail "no command of TensorRT-LLM"
# A cached prefix is worth requests, and a GPU costs some; both are said in numbers.
"$moesim" "${ask[@]}" --fail gpu=1 --json >failed.json 2>log || fail "--fail: $(tail -n 1 log)"
"$moesim" "${ask[@]/plan.json/cached}" --prefix-hit .8 --json >prefix.json 2>log || fail "--prefix-hit: $(tail -n 1 log)"
python3 - <<'PY'
import json
plain, failed, prefix = (json.load(open(f)) for f in ("found.json", "failed.json", "prefix.json"))
best = plain["best"][0]
assert prefix["best"][0]["rate"] > 1.05 * best["rate"], (prefix["best"][0]["rate"], best["rate"])
assert prefix["best"][0]["config"]["workload"]["sessions"]["shared_prefix"] == 160
assert "fail" not in plain and failed["best"] == plain["best"]
assert failed["fail"]["gpu"] == 1 and ("refused" in failed["fail"] or 0 <= failed["fail"]["rate"] < .9 * best["rate"]), failed["fail"]
assert best["binds"]["limit"] in ("capacity", "TPOT", "TTFT") and 0 < best["binds"]["share"] < 1, best["binds"]
PY
# What cannot be met, and what makes no sense.
hopeless=("${ask[@]/30 ms/1 us}")
hopeless[-1]=hopeless  # the name of its files
code=0; "$moesim" "${hopeless[@]}" >text 2>log || code=$?
((code == 3)) && grep -q 'no deployment meets the SLO for 90 % .* the nearest, at ' log || fail "a hopeless SLO: exit $code: $(tail -n 1 log)"
grep -Eq '^least TPOT possible: [0-9.]+ ms \(' text || fail "it does not say what is possible"
# Several clusters have files each. Without -o nothing is written, in no folder.
"$moesim" plan --model olmoe_1b_7b --gpu h100 --gpus 1,2 --isl .25k --osl 16 --ttft 1s --price 2 --no-page -o olmoe >scaling 2>log ||
  fail "two clusters: $(tail -n 1 log)"
[[ -e olmoe-1.json && -e olmoe-2.sqlite ]] || fail "names: $(ls)"
mkdir -p here tmp
(cd here && TMPDIR=../tmp "$moesim" plan --model olmoe_1b_7b --gpu h100 --gpus 1 --isl 256 --osl 16 --ttft 1s >answer.txt 2>../log) ||
  fail "without -o: $(tail -n 1 log)"
[[ $(ls here tmp | tr '\n' ' ') == "here: answer.txt  tmp: " ]] || fail "without -o files are written: $(ls here tmp)"
grep -q '^nothing is written; -o NAME keeps' here/answer.txt || fail "it does not say that nothing is written"
grep -q '^price: \$2.00 per GPU-hour (--price)$' scaling || fail "no price"
grep -Eq '^ *GPUs +req/s +per GPU' scaling || fail "no line of scaling: $(cat scaling)"
# With drafts where they win: few requests at a time, nearly all drafts accepted.
"$moesim" plan --model olmoe_1b_7b --gpu h100 --gpus 2 --isl 256 --osl 32 --ttft 1s --tpot 4ms --drafts 2 --acceptance .95 --no-page \
  -o drafts >drafts.txt 2>log || fail "--drafts: $(tail -n 1 log)"
grep -Eq '^1: .*, [12] drafts?; ' drafts.txt || fail "drafts that are nearly all accepted do not win: $(head -n 5 drafts.txt)"
# In another precision than the model's files have.
"$moesim" plan --model olmoe_1b_7b --gpu h100 --gpus 1 --isl 256 --osl 16 --ttft 1s --precision fp8 --kv-cache-dtype fp8 \
  --launch vllm >fp8 2>log || fail "--precision fp8: $(tail -n 1 log)"
tr -s '\n ' ' ' <fp8 | grep -q '(experts fp8, other weights fp8, KV cache fp8, ' || fail "not in fp8: $(head -n 2 fp8)"
grep -q -- '--kv-cache-dtype fp8' fp8 || fail "vLLM is not told of the cache: $(tail -n 12 fp8)"
refuses() {
  local code=0
  "$moesim" "${@:2}" >/dev/null 2>log || code=$?
  ((code == 2)) && grep -Eq "$1" log && (($(grep -vc '^info' log) == 1)) || fail "${*:2}: exit $code: $(cat log)"
}
# Sessions: how many are alive at a time, within limits by turn; more of them than that are too many; host memory as a tier.
echo '{"type": "generated", "turns": 5, "first": 2000, "new": 300, "output": 40, "gap": "2 s"}' >sessions.json
agents=(plan --model Qwen/Qwen3-30B-A3B --gpu h100 --gpus 1 --sessions sessions.json --ttft-first 500ms --ttft-later 300ms
        --tpot 30ms --host-memory 512GB --no-page -o agents)
"$moesim" "${agents[@]}" --json >agents-found.json 2>log || fail "sessions: $(tail -n 1 log)"
"$moesim" "${agents[@]}" >agents.txt 2>log || fail "sessions again: $(tail -n 1 log)"
grep -q 'runs were done before' log || fail "nothing of the sessions is resumed: $(tail -n 1 log)"
(($(wc -L <agents.txt) <= 100)) || fail "plan of sessions is wider than 100 columns"
tr -s '\n ' ' ' <agents.txt | grep -Eq '512GB of host memory a node are worth [0-9]+ % (more|fewer) sessions with write_back' || fail "no tier: $(cat agents.txt)"
"$moesim" run agents.json --json >agents-alone.json 2>log || fail "the deployment of sessions does not run: $(tail -n 1 log)"
python3 - <<'PY'
import json
plan, alone = json.load(open("agents-found.json")), json.load(open("agents-alone.json"))
best = plan["best"][0]
assert best["sessions"] == json.load(open("agents.json"))["workload"]["arrivals"]["concurrency"]
assert best["seeds"] == 3 and best["state"] == "stable", best
assert alone["turns"] == best["report"]["turns"], "run alone it is another"
assert alone["turns"]["first"]["p90_ttft_ms"] <= 500 and alone["turns"]["later"]["p90_ttft_ms"] <= 300, alone["turns"]
assert alone["metrics"]["slo_attainment"] >= .87, alone["metrics"]
assert best["heavier"]["more"] > 0 and best["heavier"]["binds"], best["heavier"]
assert abs(plan["mean_turn"]["turns_per_session"] - 5) < .2, plan["mean_turn"]
# Prompts of 2,000 to 3,360 tokens, each 340 longer, a reply of 40 in each but the first.
assert abs(plan["mean_turn"]["prompt_tokens"] - (2000 + 2 * 340)) < 20, plan["mean_turn"]
writes = {tier["write"]: tier["sessions"] for tier in plan["tiers"]}
assert set(writes) == {"write_back", "write_through"} and max(writes.values()) >= .95 * plan["sessions_of_one_seed"], writes
print(f"{best['sessions']} sessions, with a tier {writes}")
PY
hopeless=("${agents[@]/300ms/1us}")
hopeless[-1]=hopeless-agents
code=0; "$moesim" "${hopeless[@]}" >/dev/null 2>log || code=$?
((code == 3)) && grep -q 'no deployment meets the limits; the nearest, with ' log || fail "hopeless sessions: exit $code: $(tail -n 1 log)"
refuses '^.*--precision: there is no precision "fp9"; one of: bf16, fp8' plan --model qwen3_30b_a3b --gpu h100 --tpot 50ms --precision fp9
refuses 'did you mean "codex"' plan --model qwen3_30b_a3b --gpu h100 --sessions codx --tpot 50ms
refuses 'limits of --sessions' plan --model qwen3_30b_a3b --gpu h100 --session-p90 50s
refuses '^moesim: --gpu: .*did you mean "h100"' plan --model qwen3_30b_a3b --gpu h10O --gpus 8 --tpot 50ms
refuses 'a node holds 8 h100; use' plan --model qwen3_30b_a3b --gpu h100 --gpus 12 --tpot 50ms
refuses 'tpot: 0 ms is out of range' plan --model qwen3_30b_a3b --gpu h100 --gpus 8 --tpot 0ms
refuses 'did you mean "a100_40g" or "a100_80g"' plan --model qwen3_30b_a3b --gpu a100 --gpus 8 --tpot 50ms
refuses 'Give one or both' plan --model qwen3_30b_a3b --gpu h100 --gpus 8
refuses 'needs --gpu' plan --model qwen3_30b_a3b --tpot 50ms
refuses '^moesim: --model: .*did you mean "qwen3_30b_a3b"' plan --model qwen3_30b_a3 --gpu h100 --tpot 50ms
refuses '^moesim: the model does not fit.*about 9 like these.*this is the one nearest to fitting: .*"ep":[12],.*"tp":2' \
  plan --model deepseek_v3 --gpu h100 --gpus 2 --tpot 50ms -o refused
! ls refused* 2>/dev/null || fail "what is refused leaves a file behind"
refuses 'is not a number of tokens' plan --model qwen3_30b_a3b --gpu h100 --tpot 50ms --isl 4q
refuses 'give one of them, not both' plan --model qwen3_30b_a3b --gpu h100 --cluster h100x8 --tpot 50ms
"$moesim" plan --model olmoe_1b_7b --gpu h100 --gpus 1 --osl 4 --ttft 1s --no-page -o small >/dev/null 2>log ||
  fail "a question that could not be answered blocks the next: $(tail -n 1 log)"
# What if: both beside each other, and the operations that tell why.
"$moesim" what-if plan.json --set /scheduling/max_num_seqs=1 --json >whatif.json 2>log || fail "what-if: $(tail -n 1 log)"
"$moesim" what-if plan.json --set /scheduling/max_num_seqs=1 >whatif 2>log || fail "what-if: $(tail -n 1 log)"
python3 -c '
import json
w, alone = json.load(open("whatif.json")), json.load(open("alone.json"))
assert w["figures"]["slo_attainment"][0] == alone["metrics"]["slo_attainment"], "as it is it is another run"
assert w["figures"]["slo_attainment"][1] < w["figures"]["slo_attainment"][0], "one sequence a rank serves as many"
for parts in w["step_ms"].values():
    for side in (0, 1): assert abs(sum(v[side] for k, v in parts.items() if k != "all") - parts["all"][side]) < 1e-6 * parts["all"][side]
' || fail "what-if"
(($(wc -L <whatif) <= 100)) || fail "what-if is wider than 100 columns"
refuses 'nothing is changed' what-if plan.json
echo "all good"
