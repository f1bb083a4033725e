# SPDX-License-Identifier: Apache-2.0
"""What one rank computes in a step, written by hand from each model's config.json and the layout: (m, n, k) of every
product after tensor parallelism, heads and contexts of attention, loads of experts, bytes of collectives."""
import collections
import math
import random

Step = collections.namedtuple("Step", "sequences context prompts")  # prompts: (tokens, prefix) of each rank

# Fields of the models' config.json files.
MODELS = {
    "deepseek_v3": dict(hidden=7168, vocabulary=129280, layers=61, dense_layers=3, dense_width=18432, heads=128, q_lora=1536,
                        kv_lora=512, rope=64, nope=128, v=128, experts=256, top_k=8, width=2048, shared=2048),
    "qwen3_235b_a22b": dict(hidden=4096, vocabulary=151936, layers=94, heads=64, kv=4, head=128, experts=128, top_k=8, width=1536),
    "qwen3_30b_a3b": dict(hidden=2048, vocabulary=151936, layers=48, heads=32, kv=4, head=128, experts=128, top_k=8, width=768),
    "gpt_oss_120b": dict(hidden=2880, vocabulary=201088, layers=36, heads=64, kv=8, head=64, experts=128, top_k=4, width=2880,
                         window=128),  # every other layer
    "mixtral_8x7b": dict(hidden=4096, vocabulary=32000, layers=32, heads=32, kv=8, head=128, experts=8, top_k=2, width=14336),
    "llama_3_3_70b": dict(hidden=8192, vocabulary=128256, layers=80, dense_layers=80, dense_width=28672, heads=64, kv=8, head=128,
                          experts=0),
    "llama_3_1_8b": dict(hidden=4096, vocabulary=128256, layers=32, dense_layers=32, dense_width=14336, heads=32, kv=8, head=128,
                         experts=0),
}

# Data sheets: bytes/s of HBM, dense bf16 flop/s.
SHEETS = {"a100_80g": (2.039e12, 312e12), "h100": (3.35e12, 989.5e12), "h200": (4.8e12, 989.5e12), "b200": (8e12, 2250e12)}

# Names of precisions in tables.
TABLE = {"bf16": "bfloat16", "fp8": "fp8", "fp8_block": "fp8_block", "nvfp4": "nvfp4", "mxfp4": "w4a16_mxfp4"}


def busiest(tokens, top_k, experts, ranks, draws=12):
    """(copies of tokens, active experts) of the rank that takes longest when every token picks `top_k` different experts,
    all as likely: the rank with the most of both, mean of some draws. Many tokens: all are active."""
    mine = experts // ranks
    if ranks == 1:
        return tokens * top_k, experts * (1 - (1 - top_k / experts) ** tokens)
    if tokens * top_k > 40 * experts:
        mean = tokens * top_k / ranks
        return mean + math.sqrt(2 * math.log(ranks) * mean * (1 - 1 / ranks)), mine
    generator = random.Random(tokens * 1000 + ranks)
    rows = active = 0
    for _ in range(draws):
        counts = [0] * experts
        for _ in range(tokens):
            for expert in generator.sample(range(experts), top_k):
                counts[expert] += 1
        loads = [(sum(map(bool, part)), sum(part)) for part in (counts[r * mine:(r + 1) * mine] for r in range(ranks))]
        most = max(loads)
        rows, active = rows + most[1] / draws, active + most[0] / draws
    return rows, active


def operations(model, layout, step):
    """[(name and part as explain prints them, calls, a question)]: of the kernels that tables may hold."""
    m, tp, dp = MODELS[model], layout["tp"], layout["dp"]
    ep, moe_tp = layout["ep"], layout["tp"] * layout["dp"] // layout["ep"]
    attention, experts, cache = layout["attention"], layout["experts"], layout["kv_cache"]
    new = step.sequences + sum(t for t, _ in step.prompts)  # tokens of a rank
    sampled = step.sequences + len(step.prompts)
    layers, dense = m["layers"], m.get("dense_layers", 0)
    moe = layers - dense
    ops = []

    def gemm(name, calls, rows, n, k, precision, part="attention"):
        ops.append(((name, part), calls, ("gemm", precision, rows, n, k)))

    heads = m["heads"] // tp
    if "kv_lora" in m:
        latent = m["kv_lora"] + m["rope"]
        gemm("qkv_a_proj", layers, new, m["q_lora"] + latent, m["hidden"], attention)
        gemm("q_b_proj", layers, new, heads * (m["nope"] + m["rope"]), m["q_lora"], attention)
        gemm("o_proj", layers, new, m["hidden"], heads * m["v"], attention)
        if step.sequences:
            ops.append((("k_b_absorbed", "attention"), layers, ("absorb", "mla_gen_pre", step.sequences, heads)))
            ops.append((("v_b_absorbed", "attention"), layers, ("absorb", "mla_gen_post", step.sequences, heads)))
            ops.append((("attention_decode", "attention"), layers, ("mla_decode", cache, heads, step.sequences, step.context)))
        if step.prompts:
            gemm("kv_b_proj", layers, sum(t + p for t, p in step.prompts), heads * (m["nope"] + m["v"]), m["kv_lora"], attention)
            ops.append((("attention_prefill", "attention"), layers, ("mla_prefill", cache, heads, step.prompts)))
    else:
        kv = max(1, m["kv"] // tp)
        gemm("qkv_proj", layers, new, (heads + 2 * kv) * m["head"], m["hidden"], attention)
        gemm("o_proj", layers, new, m["hidden"], heads * m["head"], attention)
        windows = [(layers // 2, m["window"]), (layers // 2, 0)] if "window" in m else [(layers, 0)]
        for calls, window in windows:
            if step.sequences:
                ops.append((("attention_decode", "attention"), calls,
                            ("decode", cache, heads, kv, m["head"], window, step.sequences, step.context)))
            if step.prompts:
                ops.append((("attention_prefill", "attention"), calls, ("prefill", cache, heads, kv, m["head"], window, step.prompts)))
    if dense:
        gemm("gate_up_proj", dense, new, 2 * m["dense_width"] // tp, m["hidden"], attention, "dense_ffn")
        gemm("down_proj", dense, new, m["hidden"], m["dense_width"] // tp, attention, "dense_ffn")
    if moe:
        gemm("gate", moe, new, m["experts"], m["hidden"], "bf16", "gate")
        rows, active = busiest(new * dp, m["top_k"], m["experts"], ep)
        layer = m["hidden"], m["width"] // moe_tp, m["top_k"], m["experts"]
        # Behind DeepEP's low-latency kernels experts in blocks of fp8 are multiplied in DeepGEMM's masked layout.
        masked = layout["dispatch"] == "low_latency" and experts == "fp8_block" and dp > 1
        question = ("masked_experts", *layer, rows, active) if masked else ("experts", experts, *layer, new * dp, rows, active)
        ops.append((("expert_ffn", "experts"), moe, question))
    gemm("lm_head", 1, sampled, m["vocabulary"] // tp, m["hidden"], "bf16", "other")

    # Collectives, all activations in bf16.
    if tp > 1:
        # After attention, and after a dense FFN; of the experts with one attention rank it is their way back.
        ops.append((("tp_all_reduce", "all_reduce"), layers + dense, ("all_reduce", tp, new * m["hidden"] * 2)))
        ops.append((("logits_all_gather", "other"), 1, ("nccl", "all_gather", tp, sampled * m["vocabulary"] * 2)))
    if moe and dp == 1 and tp > 1:
        ops.append((("combine", "combine"), moe, ("all_reduce", tp, new * m["hidden"] * 2)))
    if moe and tp == 1 and dp > 1:
        kind = layout["dispatch"]
        if kind == "all_gather" and dp <= 8:
            total = new * dp * m["hidden"] * 2
            ops.append((("dispatch", "dispatch"), moe, ("nccl", "all_gather", dp, total)))
            ops.append((("combine", "combine"), moe, ("nccl", "reduce_scatter", dp, total)))
        elif kind != "all_gather":
            table = "low_latency" if kind == "low_latency" else "normal"
            for name, column in (("dispatch", 1), ("combine", 2)):
                ops.append(((name, name), moe, ("deepep", table, column, math.ceil(dp / 8), m["hidden"], m["top_k"], m["experts"], new)))
    return ops
