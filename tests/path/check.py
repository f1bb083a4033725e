#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""From model, layout and step to the tables' rows: `moesim explain` beside shapes written by hand (shapes.py) and the rows
that an engineer would pick for them (rows.py). README.md says what is asked of whom.

    check.py MOESIM [--table FILE] [--only TEXT]"""
import argparse
import csv
import json
import math
import pathlib
import statistics
import subprocess
import sys
import tempfile

import laws
import rows
import shapes

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
OPERATION, STEP = 0.10, 0.15  # how far an operation and a step may be off
SHARE = 0.95                  # of the operations, each of one case, must be as near as that

Step = shapes.Step
DECODE = [Step(s, c, ()) for s, c in ((1, 1024), (4, 8192), (8, 1023), (16, 2048), (32, 16384), (64, 1024), (128, 4096), (256, 1024))]
PROMPTS = [Step(0, 0, p) for p in (((512, 0),), ((2048, 0),), ((4096, 0),), ((8192, 0),), ((16384, 0),), ((2048, 6144),),
                                   ((7168, 0), (1024, 0)))]
MIXED = [Step(16, 2048, ((2048, 0),)), Step(64, 1024, ((4096, 4096),))]


def layout(model, gpu, cluster, engine, version, experts, dp=1, tp=1, ep=None, kv_cache="bf16", attention=None, dispatch="all_gather",
           expert_kernel=None, longest=16384):
    return dict(locals(), ep=ep or (dp * tp if shapes.MODELS[model]["experts"] else 1), attention=attention or experts)


LAYOUTS = [
    layout("deepseek_v3", "h200", "h200x8", "vllm", "0.19.0", "fp8_block", dp=8, longest=8192),
    layout("deepseek_v3", "h200", "h200x8", "sglang", "0.5.9", "fp8_block", tp=8, kv_cache="fp8"),
    layout("deepseek_v3", "h200", "h200x16", "sglang", "0.5.9", "fp8_block", dp=16, dispatch="deepep", longest=4096),
    layout("deepseek_v3", "h200", "h200x32", "trtllm", "1.2.0rc5", "fp8_block", dp=32, dispatch="deepep", longest=4096),
    layout("deepseek_v3", "h100", "h100x16", "trtllm", "1.2.0rc5", "fp8_block", dp=16, dispatch="deepep", longest=4096),
    layout("deepseek_v3", "b200", "b200x8", "trtllm", "1.2.0rc5", "nvfp4", dp=8, kv_cache="fp8", attention="fp8_block", longest=8192),
    layout("qwen3_235b_a22b", "h200", "h200x8", "vllm", "0.19.0", "bf16", tp=8),
    layout("qwen3_235b_a22b", "h200", "h200x8", "trtllm", "1.2.0rc5", "fp8_block", dp=8, dispatch="deepep"),
    layout("qwen3_235b_a22b", "b200", "b200x8", "trtllm", "1.2.0rc5", "nvfp4", tp=4, expert_kernel="cutlass"),
    layout("qwen3_30b_a3b", "h100", "h100x8", "vllm", "0.19.0", "bf16"),
    layout("qwen3_30b_a3b", "h200", "h200x8", "sglang", "0.5.9", "bf16", dp=8, dispatch="deepep"),
    layout("qwen3_30b_a3b", "a100_80g", "a100_80g_x8", "vllm", "0.14.0", "bf16", tp=2),
    layout("gpt_oss_120b", "h100", "h100x8", "trtllm", "1.2.0rc5", "mxfp4", dp=4, attention="bf16"),
    layout("gpt_oss_120b", "h200", "h200x8", "trtllm", "1.2.0rc5", "mxfp4", tp=4, attention="bf16"),
    layout("gpt_oss_120b", "b200", "b200x8", "trtllm", "1.2.0rc5", "mxfp4", tp=4, attention="bf16"),
    layout("mixtral_8x7b", "h100", "h100x8", "trtllm", "1.2.0rc5", "bf16", tp=4),
    layout("mixtral_8x7b", "h200", "h200x8", "vllm", "0.19.0", "bf16", dp=8, dispatch="deepep"),
    layout("llama_3_3_70b", "h200", "h200x8", "trtllm", "1.2.0rc5", "fp8", tp=8, kv_cache="fp8"),
    layout("llama_3_1_8b", "b200", "b200x8", "vllm", "0.19.0", "bf16"),
]

# Of these prices are asked along every axis.
GROWING = {("deepseek_v3", "h200", "vllm"), ("qwen3_235b_a22b", "b200", "trtllm"), ("qwen3_30b_a3b", "h100", "vllm"),
           ("gpt_oss_120b", "h200", "trtllm"), ("llama_3_3_70b", "h200", "trtllm"), ("deepseek_v3", "h200", "sglang")}


def name_of(l):
    cut = " ".join(f"{k}{l[k]}" for k in ("dp", "tp", "ep") if l[k] > 1)
    return f"{l['model']} {l['gpu']} {l['engine']} {l['experts']} {cut or 'one'} {l['dispatch'] if l['dp'] > 1 else ''}".strip()


def text_of(step):
    decode = f"{step.sequences} at {step.context}" if step.sequences else ""
    prompts = " ".join(f"{t}@{p}" for t, p in step.prompts)
    return " + ".join(filter(None, (decode, prompts)))


def steps_of(l):
    """A decode group and a group with prompts, whose recordings differ."""
    fits = lambda s: sum(t for t, _ in s.prompts) <= l["longest"]
    return [DECODE, [s for s in PROMPTS + MIXED if fits(s)]]


# --- the program ---------------------------------------------------------------------------------------------------------------


def explain(moesim, l, steps, folder):
    prompts = any(s.prompts for s in steps)
    # Enough recorded tokens that few come twice in a step: routing is uniform, and so it is by hand.
    gating = dict(type="uniform", requests=24, prompt_rows=768, decode_rows=24) if prompts else \
        dict(type="uniform", requests=256, prompt_rows=1, decode_rows=12)
    exchange = {"type": "all_gather", "combine": "reduce_scatter"}
    exchanges = {"prefill": exchange, "decode": exchange}
    if l["dispatch"] == "deepep":
        exchanges = {"prefill": {"type": "all_to_all", "precision": "fp8"}, "decode": {"type": "low_latency", "precision": "fp8"}}
    activations = l["experts"] if l["experts"] in ("fp8", "fp8_block", "nvfp4") else "bf16"
    config = {
        "cluster": str(ROOT / f"hardware/clusters/{l['cluster']}.json"), "model": str(l.get("file", ROOT / f"models/zoo/{l['model']}.json")),
        "precision": {"experts": l["experts"], "attention": l["attention"], "kv_cache": l["kv_cache"], "activations": activations},
        "parallel": {"dp": l["dp"], "tp": l["tp"], "ep": l["ep"]}, "engine": {"name": l["engine"], "version": l["version"]},
        "scheduling": {"type": "chunked_prefill", "max_num_batched_tokens": 16384, "max_num_seqs": 512},
        "workload": {"arrivals": {"type": "closed_loop", "concurrency_per_rank": 1}, "requests": 8, "gating": gating,
                     "lengths": {"type": "fixed", "prompt": 256, "output": 64}},
        "token_routing": {"prefill": "even", "decode": "even", "mixed": "prefill"}, "seed": 1}
    if shapes.MODELS[l["model"]]["experts"]:
        config |= {"dispatch": exchanges, "placement": {"type": "linear", "replication": 1.0}}
    file, list_of_steps = folder / "config.json", folder / "steps.json"
    file.write_text(json.dumps(config))
    list_of_steps.write_text(json.dumps([{"sequences": s.sequences, "context": s.context,
                                          "prompts": [{"tokens": t, "prefix": p} for t, p in s.prompts]} for s in steps]))
    done = subprocess.run([moesim, "explain", file, "--steps", list_of_steps, "--samples", "1", "--json"], capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{name_of(l)}: {done.stderr}")
    return json.loads(done.stdout)


# --- the rows --------------------------------------------------------------------------------------------------------------------


class Picked:
    """Microseconds of one question by the rows of a GPU, or None where no row has the shape."""

    def __init__(self, l):
        self.l = l
        self.profiles = rows.Profiles(ROOT / "hardware/profiles" / l["gpu"])

    def series(self, table, **shape):
        """Of every engine: what they run comes from the same few libraries, and the fastest is chosen. The row's own engine
        answers in the version asked for, others in their newest that has the shape."""
        own = self.l["engine"]
        found = self.profiles.series(own, self.l["version"], table, **shape)
        if not found:
            return []  # another GPU's rows of the same engine go before another engine's
        for other in ("vllm", "sglang", "trtllm"):
            if other != own:
                found = found + [(dict(f, kernel=other + f.get("kernel", "")), points)
                                 for f, points in self.profiles.series(other, "", table, **shape)]
        return found

    def __call__(self, question):
        """(microseconds or None, whether rows of this very shape, close on all sides, say so)"""
        us = getattr(self, question[0])(*question[1:])
        return us if isinstance(us, tuple) else (us, us is not None)

    def gemm(self, precision, m, n, k):
        return rows.product(self.series("gemm", precision=shapes.TABLE[precision]), m, n, k)

    def absorb(self, op, tokens, heads):
        return rows.along(self.series("mla_bmm", op=op, precision="bfloat16", heads=heads), tokens)

    def attention(self, table, cache, kv, offset, **shape):
        """{kernel: [(batch times KV heads, [(tokens, us)])]}: kernels split a batch's KV heads over the SMs, so four of one
        sequence are one of four."""
        for precision in ("bfloat16", "fp8"):
            found = self.series(table, precision=precision, kv_precision=shapes.TABLE[cache], **shape)
            lines = {}
            for fields, points in found:
                heads = int(fields.get("kv_heads", 1))
                if kv and int(fields["q_heads"]) * kv[1] != heads * kv[0]:
                    continue
                line = float(fields["batch"]) * heads, [(p[0] + offset, p[1]) for p in points]
                lines.setdefault(fields["kernel"], []).append(line)
            if lines:
                return lines
        return {}

    def decode(self, cache, heads, kv, head, window, batch, context):
        # Rows count the tokens before the new one.
        lines = self.attention("attention_decode", cache, (heads, kv), 1, head_dim=head, window=window)
        seen = lambda y, x: y * (min(x, window) if window else x)
        return rows.over(lines, batch * kv, context + 1, seen)

    def mla_decode(self, cache, heads, batch, context):
        return rows.over(self.attention("mla_decode", cache, None, 1, q_heads=heads, isl=1), batch, context + 1)

    def prompts(self, lines, kv, prompts, window=0):
        """Each prompt by itself; behind a prefix as long as a whole prompt of as many query-key pairs."""
        pairs = lambda y, x: y * (x * min(x, window) if window else x * x)
        times = []
        for tokens, prefix in prompts:
            # Keys outside the window cost nothing: as the prompt alone.
            length = tokens if window else math.sqrt(tokens * tokens + 2 * tokens * prefix)
            times.append(rows.over(lines, kv, length, pairs))
        if any(us is None for us, _ in times):
            return None, False
        least = min(us for kernel in lines.values() for _, points in kernel for _, us in points)  # a launch, once for all
        return sum(us for us, _ in times) - (len(times) - 1) * least, all(exact for _, exact in times)

    def prefill(self, cache, heads, kv, head, window, prompts):
        lines = self.attention("attention_prefill", cache, (heads, kv), 0, head_dim=head, window=window, prefix=0)
        return self.prompts(lines, kv, prompts, window)

    def mla_prefill(self, cache, heads, prompts):
        return self.prompts(self.attention("mla_prefill", cache, None, 0, q_heads=heads, step=0), 1, prompts)

    def experts(self, precision, hidden, width, top_k, experts, tokens, copies, active):
        found = self.series("experts", precision=shapes.TABLE[precision], hidden=hidden, width=width, top_k=top_k, experts=experts)
        wanted = self.l["expert_kernel"] or ""
        found = [f for f in found if "nongated" not in f[0]["kernel"] and wanted in f[0]["kernel"]]
        bandwidth, peak = shapes.SHEETS[self.l["gpu"]]
        bits = {"bf16": 16, "fp8": 8, "fp8_block": 8, "nvfp4": 4.5, "mxfp4": 4.25}[precision]
        peak *= {16: 1, 8: 2, 4.5: 4, 4.25: 1}[bits]

        def rough(tokens, copies, active):
            weights = active * 3 * hidden * width * bits / 8
            moved = copies * hidden * 4 + tokens * top_k * (2 * hidden + 4 * width)
            return 20 + (weights + moved) / bandwidth * 1e6 + 6 * copies * hidden * width / (peak / 2) * 1e6

        return rows.expert_layer(found, rough, tokens, copies, active)

    def masked_experts(self, hidden, width, top_k, experts, copies, active):
        """No copies are permuted in the masked layout: tokens of the group do not count."""
        found = [(fields, [(1, *p[1:]) for p in points]) for fields, points in
                 self.profiles.series("sglang", "", "wideep_experts_decode", hidden=hidden, width=width, top_k=top_k,
                                      experts=experts)]
        bandwidth, _ = shapes.SHEETS[self.l["gpu"]]
        return rows.expert_layer(found, lambda _, __, some: 20 + some * 3 * hidden * width / bandwidth * 1e6, 1, copies, active)

    def nccl(self, op, gpus, count):
        return rows.along(self.profiles.series("nccl", "", "collectives", op=op, gpus=gpus), count, 1)

    def all_reduce(self, gpus, count):
        own = rows.along(self.series("all_reduce", gpus=gpus), count, 1)
        return rows.fastest([own, self.nccl("all_reduce", gpus, count)])

    def deepep(self, table, column, nodes, hidden, top_k, experts, tokens):
        found = self.profiles.series("deepep", "", table, nodes=nodes, hidden=hidden, top_k=top_k, experts=experts,
                                     sms=0 if table == "low_latency" else 20)
        return rows.along([(fields, [(p[0], p[column]) for p in points]) for fields, points in found], tokens)


def ours_of(step):
    sums = {}
    for op in step["operations"]:
        key = op["operation"], op["part"]
        seconds, calls = sums.get(key, (0, 0))
        sums[key] = seconds + op["seconds"], calls + op["calls"]
    return sums


def compare(moesim, l, folder):
    """[(step, total ms, [(operation, calls, us by rows, us ours)])]"""
    picked, cases = Picked(l), []
    for steps in steps_of(l):
        for step, explained in zip(steps, explain(moesim, l, steps, folder)):
            ours, table = ours_of(explained), {}
            exchange = "low_latency" if not step.prompts else "normal"
            cut = dict(l, dispatch=exchange if l["dispatch"] == "deepep" else l["dispatch"])
            for key, calls, question in shapes.operations(l["model"], cut, step):
                us, exact = picked(question)
                seen = table.get(key, (0, 0, True))
                total = None if us is None or seen[1] is None else seen[1] + calls * us
                table[key] = calls + seen[0], total, exact and seen[2]
            compared = []
            for key, (calls, us, exact) in table.items():
                seconds, our_calls = ours.get(key, (0, 0))
                if our_calls != calls:
                    sys.exit(f"{name_of(l)}, {text_of(step)}: {key}: {our_calls} calls, by hand {calls}")
                if us is not None:
                    compared.append((key[0], calls, us, seconds * 1e6, exact))
            cases.append((step, explained, compared))
    return cases


def exceptions():
    with open(HERE / "exceptions.csv", newline="") as text:
        return list(csv.DictReader(text))


def excused(listed, l, step, operation):
    for row in listed:
        if row["layout"] in name_of(l) and row["operation"] == operation and row["step"] in text_of(step):
            row["used"] = True
            return True
    return False


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("moesim")
    parser.add_argument("--table", help="CSV to write: every operation of every case")
    parser.add_argument("--only", default="", help="layouts whose name holds this")
    options = parser.parse_args()
    listed, lines, failures, skipped = exceptions(), [], [], []
    cases = operations = near = excused_operations = 0
    shares = []
    with tempfile.TemporaryDirectory() as folder:
        asked = lambda l, steps: explain(options.moesim, l, steps, pathlib.Path(folder))
        for l in LAYOUTS if not options.only else []:
            if (l["model"], l["gpu"], l["engine"]) in GROWING:
                grid = laws.series()
                failures += laws.falls(name_of(l), grid, asked(l, [step for _, steps in grid for step in steps]))
            if l["model"] == "gpt_oss_120b":
                failures += laws.full_below_windowed(l, asked, pathlib.Path(folder))
        for l in LAYOUTS:
            if options.only not in name_of(l):
                continue
            if not (ROOT / "hardware/profiles" / l["gpu"]).is_dir():
                skipped.append(name_of(l))
                continue
            result = compare(options.moesim, l, pathlib.Path(folder))
            for step, explained, compared in result:
                cases += 1
                by_rows = ours = 0
                for operation, calls, us, our_us, exact in compared:
                    ratio = our_us / us
                    lines.append((name_of(l), text_of(step), operation, calls, f"{us / calls:.2f}", f"{our_us / calls:.2f}", f"{ratio:.3f}",
                                  "" if exact else "near"))
                    if excused(listed, l, step, operation):
                        excused_operations += 1
                        continue
                    operations += exact
                    near += exact and abs(ratio - 1) <= OPERATION
                    by_rows, ours = by_rows + us, ours + our_us
                shares.append(sum(c[3] for c in compared) / (explained["total_ms"] * 1e3))
                if not by_rows:
                    continue
                ratio = ours / by_rows
                lines.append((name_of(l), text_of(step), "step", 1, f"{by_rows:.0f}", f"{ours:.0f}", f"{ratio:.3f}", ""))
                if abs(ratio - 1) > STEP:
                    failures.append(f"{name_of(l)}, {text_of(step)}: the step is {ratio:.2f} of its rows")
    if options.table:
        with open(options.table, "w", newline="") as text:
            csv.writer(text).writerows([("layout", "step", "operation", "calls", "rows_us", "ours_us", "ratio", "shape"), *lines])
    for name in skipped:
        print(f"skipped: {name}: no tables")
    print(f"{cases} steps, {operations} operations with rows, {near / max(1, operations):.1%} within {OPERATION:.0%}; "
          f"{excused_operations} more are listed in exceptions.csv; rows are {statistics.median(shares):.0%} of a step in the median")
    if near < SHARE * operations:
        failures.append(f"{near} of {operations} operations are within {OPERATION:.0%}; expected {SHARE:.0%}")
        for layout_name, step, operation, calls, us, our_us, ratio, shape in lines:
            if operation != "step" and not shape and abs(float(ratio) - 1) > OPERATION:
                print(f"  {ratio} {operation}: {our_us} us, by rows {us}: {layout_name}, {step}")
    if not options.only:
        if cases < 200 and not skipped:
            failures.append(f"{cases} steps; expected 200")
        failures += [f"exceptions.csv: nothing needs the line {row['layout']}, {row['step']}, {row['operation']}" for row in listed
                     if "used" not in row]
    for failure in failures:
        print(failure)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
