#!/usr/bin/env python3
"""Does `check` say the precisions of generated checkpoints, module by module?

    tests/quantised.py MOESIM [CHECKPOINTS [SEED]]

Each checkpoint is a family, a quantiser and patterns of layers, projections and experts, drawn by a seed. All its modules are
listed here by name, and Python's own re and fnmatch say what each is stored in.
"""
import fnmatch
import json
import pathlib
import random
import re
import subprocess
import sys
import tempfile

moesim = sys.argv[1]
checkpoints = int(sys.argv[2]) if len(sys.argv) > 2 else 60
first_seed = int(sys.argv[3]) if len(sys.argv) > 3 else 1
root = pathlib.Path(__file__).resolve().parents[1]
H, VOCABULARY = 2048, 32000
BYTES = {"bf16": 2, "fp8": 1, "fp8_block": 1 + 4 / 128**2, "mxfp4": 0.5 + 1 / 32, "nvfp4": 0.5 + 1 / 16,
         "int4": 0.5 + 2 / 128, "int8": 1}


# ---- families: a config.json and its modules (name, part, parameters) ----

def grouped(layer, heads, kv_heads, dim, q=1):
    return [(f"{layer}.q_proj", "attention", q * H * heads * dim), (f"{layer}.k_proj", "attention", H * kv_heads * dim),
            (f"{layer}.v_proj", "attention", H * kv_heads * dim), (f"{layer}.o_proj", "attention", H * heads * dim)]


def gated(block, part, width, names=("gate_proj", "up_proj", "down_proj")):
    return [(f"{block}.{name}", part, H * width) for name in names]


def routed(block, experts, width, names=("gate_proj", "up_proj", "down_proj")):
    return [module for e in range(experts) for module in gated(f"{block}.{e}", "experts", width, names)]


def config(kind, architecture, layers, **more):
    return {"architectures": [architecture], "model_type": kind, "hidden_size": H, "num_hidden_layers": layers,
            "num_attention_heads": 16, "num_key_value_heads": 4, "head_dim": 128, "vocab_size": VOCABULARY,
            "max_position_embeddings": 8192, "tie_word_embeddings": False, **more}


def qwen3(draw):
    layers, experts, dense = draw.randint(3, 12), draw.choice([8, 16, 40, 120]), draw.choice([[], [0], [0, 2]])
    made = config("qwen3_moe", "Qwen3MoeForCausalLM", layers, intermediate_size=6144, moe_intermediate_size=768,
                  num_experts=experts, num_experts_per_tok=2, decoder_sparse_step=1, mlp_only_layers=dense)
    modules = []
    for l in range(layers):
        modules += grouped(f"model.layers.{l}.self_attn", 16, 4, 128)
        modules += gated(f"model.layers.{l}.mlp", "ffn", 6144) if l in dense else routed(f"model.layers.{l}.mlp.experts", experts, 768)
    return made, modules, "mlp", (layers - len(dense)) * experts


def qwen2(draw):
    layers, experts = draw.randint(3, 12), draw.choice([8, 60])
    made = config("qwen2_moe", "Qwen2MoeForCausalLM", layers, intermediate_size=6144, moe_intermediate_size=1408,
                  shared_expert_intermediate_size=5632, num_experts=experts, num_experts_per_tok=2, decoder_sparse_step=1,
                  mlp_only_layers=[])
    modules = []
    for l in range(layers):
        modules += grouped(f"model.layers.{l}.self_attn", 16, 4, 128)
        modules += routed(f"model.layers.{l}.mlp.experts", experts, 1408)
        modules += gated(f"model.layers.{l}.mlp.shared_expert", "ffn", 5632)
    return made, modules, "mlp", layers * experts


def qwen3_next(draw):
    layers, experts = 4 * draw.randint(1, 3), draw.choice([16, 64])
    made = config("qwen3_next", "Qwen3NextForCausalLM", layers, intermediate_size=6144, moe_intermediate_size=512,
                  shared_expert_intermediate_size=512, num_experts=experts, num_experts_per_tok=4, decoder_sparse_step=1,
                  mlp_only_layers=[], full_attention_interval=4, linear_num_key_heads=16, linear_num_value_heads=32,
                  linear_key_head_dim=128, linear_value_head_dim=128, linear_conv_kernel_dim=4)
    modules = []
    for l in range(layers):
        at = f"model.layers.{l}"
        if (l + 1) % 4:
            modules += [(f"{at}.linear_attn.in_proj_qkvz", "attention", H * (2 * 2048 + 2 * 4096)),
                        (f"{at}.linear_attn.in_proj_ba", "attention", H * 64), (f"{at}.linear_attn.out_proj", "attention", H * 4096)]
        else:
            modules += grouped(f"{at}.self_attn", 16, 4, 128, q=2)
        modules += routed(f"{at}.mlp.experts", experts, 512) + gated(f"{at}.mlp.shared_expert", "ffn", 512)
    return made, modules, "mlp", layers * experts


def deepseek(draw):
    layers, experts = draw.randint(4, 12), draw.choice([16, 32])
    made = config("deepseek_v3", "DeepseekV3ForCausalLM", layers, intermediate_size=8192, moe_intermediate_size=1024,
                  n_routed_experts=experts, n_shared_experts=2, num_experts_per_tok=4, first_k_dense_replace=2, n_group=1,
                  topk_group=1, q_lora_rank=768, kv_lora_rank=512, qk_nope_head_dim=128, qk_rope_head_dim=64, v_head_dim=128)
    modules = []
    for l in range(layers):
        at = f"model.layers.{l}.self_attn"
        modules += [(f"{at}.q_a_proj", "attention", H * 768), (f"{at}.q_b_proj", "attention", 768 * 16 * 192),
                    (f"{at}.kv_a_proj_with_mqa", "attention", H * 576), (f"{at}.kv_b_proj", "attention", 512 * 16 * 256),
                    (f"{at}.o_proj", "attention", H * 16 * 128)]
        if l < 2:
            modules += gated(f"model.layers.{l}.mlp", "ffn", 8192)
        else:
            modules += routed(f"model.layers.{l}.mlp.experts", experts, 1024)
            modules += gated(f"model.layers.{l}.mlp.shared_experts", "ffn", 2048)
    return made, modules, "mlp", (layers - 2) * experts


def mixtral(draw):
    layers, experts = draw.randint(3, 12), 8
    made = config("mixtral", "MixtralForCausalLM", layers, intermediate_size=3584, num_local_experts=experts,
                  num_experts_per_tok=2, sliding_window=None)
    modules = []
    for l in range(layers):
        modules += grouped(f"model.layers.{l}.self_attn", 16, 4, 128)
        modules += routed(f"model.layers.{l}.block_sparse_moe.experts", experts, 3584, ("w1", "w3", "w2"))
    return made, modules, "block_sparse_moe", layers * experts


# ---- patterns ----

def patterns(draw, modules, block):
    """Names and regular expressions of layers, projections and experts."""
    layers = 1 + max(int(name.split(".")[2]) for name, _, _ in modules)
    layer, expert = draw.randrange(layers), draw.randrange(8)
    some = draw.choice([name for name, _, _ in modules])
    last = some.rsplit(".", 1)[1]
    return {
        "regex": [r".*self_attn.*", r".*\.(q|k|v)_proj$", rf".*\.{last}$", rf"model\.layers\.{layer}\..*",
                  rf"model\.layers\.{layer}\.{block}\..*", rf".*{block}\.experts\.{expert}\..*", rf".*experts\.[0-{expert}]\.\w+$",
                  r".*experts\.\d{2}\..*", r"^(?!.*experts).*", r".*(?<!shared_)expert.*", r"model\.layers\.(?:0|2|10)\.self_attn.*",
                  r".*layers\.[02468]\..*", rf".*shared_expert(s)?\..*", r"(?i).*SELF_ATTN\.O_PROJ", r".*[13579]\.(up|w3).*",
                  rf"model.layers.{layer}.{block}.*", r".*gate$", r".*_expert_gate$", r"self_attn.*", re.escape(some)],
        "glob": ["*self_attn*", f"*.{last}", f"model.layers.{layer}.*", f"*{block}.experts.{expert}.*", "*experts.[0-2].*",
                 "*.layers.?.*_proj", f"model.layers.{layer}.self_attn*", "*shared_expert*", "lm_head", "*linear_attn*", some],
        "name": [some, some, some.rsplit(".", 1)[0], f"model.layers.{layer}.{block}.experts.{expert}", f"model.layers.{layer}", "lm_head"]}


def several(draw, pool, most=4):
    return draw.sample(pool, draw.randint(0, min(most, len(pool))))


# ---- quantisers: a quantization_config and what it makes of a module ----

def inside(name, parts):
    """Parts of a name side by side."""
    return f".{parts}." in f".{name}."


def compressed_tensors(draw, modules, block):
    pool = patterns(draw, modules, block)
    kinds = {"nvfp4": (4, "float", "tensor_group", 16), "mxfp4": (4, "float", "group", 32), "int4": (4, "int", "group", 128),
             "fp8": (8, "float", "channel", None), "fp8_block": (8, "float", "block", None), "int8": (8, "int", "channel", None)}
    entries = ["re:" + p for p in pool["regex"]] + pool["name"]
    ignore, groups = several(draw, entries), []
    for kind in draw.sample(sorted(kinds), draw.randint(1, 2)):
        groups.append((kind, draw.choice([["Linear"], several(draw, entries, 3)])))
    made = {"quant_method": "compressed-tensors", "ignore": ignore, "config_groups": {}}
    for i, (kind, targets) in enumerate(groups):
        bits, of, strategy, size = kinds[kind]
        made["config_groups"][f"group_{i}"] = {"targets": targets, "weights": {"num_bits": bits, "type": of, "strategy": strategy, "group_size": size}}

    def hit(name, entry):
        return re.match(entry[3:], name) is not None if entry.startswith("re:") else name == entry

    def stored(name):
        if any(hit(name, entry) for entry in ignore):
            return "bf16"
        for kind, targets in groups:
            if any(hit(name, target) for target in targets):
                return kind
        return next((kind for kind, targets in reversed(groups) if "Linear" in targets), "bf16")
    return made, stored


def gptq(draw, modules, block):
    rules = [draw.choice(["-:", "+:", ""]) + p for p in several(draw, patterns(draw, modules, block)["regex"])]
    bits = {rule: draw.choice([4, 8]) for rule in rules}
    made = {"quant_method": "gptq", "bits": 4, "group_size": 128, "sym": True,
            "dynamic": {rule: {} if rule.startswith("-:") else {"bits": bits[rule]} for rule in rules}}
    only = None
    if draw.random() < 0.3:
        suffixes = sorted({re.sub(r"experts\.\d+", "experts.0", name.split(".", 3)[3]) for name, _, _ in modules})
        only = several(draw, suffixes, len(suffixes)) or suffixes[:1]
        made["modules_in_block_to_quantize"] = [only]

    def stored(name):
        if only is not None and re.sub(r"experts\.\d+", "experts.0", name.split(".", 3)[3]) not in only:
            return "bf16"
        for rule in made["dynamic"]:
            if re.match(re.sub(r"^[+-]:", "", rule), name):
                return "bf16" if rule.startswith("-:") else f"int{bits[rule]}"
        return "int4"
    return made, stored


def awq(draw, modules, block):
    listed = several(draw, ["self_attn", "o_proj", block, "experts.1", "layers.2.", "shared_expert", "gate", "down", "lm_head"])
    made = {"quant_method": "awq", "bits": 4, "group_size": 128, "modules_to_not_convert": listed}
    return made, lambda name: "bf16" if any(piece in name for piece in listed) else "int4"


def quark(draw, modules, block):
    pool = patterns(draw, modules, block)
    kinds = {"mxfp4": {"dtype": "fp4", "group_size": 32}, "fp8": {"dtype": "fp8_e4m3", "qscheme": "per_tensor"}, "int8": {"dtype": "int8"}}
    exclude = several(draw, pool["glob"], 2) + ["re:" + p for p in several(draw, pool["regex"], 1)]
    layers = {glob: draw.choice(sorted(kinds)) for glob in several(draw, pool["glob"], 3)}
    rest = draw.choice(sorted(kinds))
    made = {"quant_method": "quark", "exclude": exclude, "export": {"kv_cache_group": []},
            "layer_quant_config": {glob: {"weight": kinds[kind]} for glob, kind in layers.items()},
            "global_quant_config": {"weight": kinds[rest]}}

    def stored(name):
        if any(re.match(e[3:], name) if e.startswith("re:") else fnmatch.fnmatchcase(name, e) for e in exclude):
            return "bf16"
        return next((kind for glob, kind in layers.items() if fnmatch.fnmatchcase(name, glob)), rest)
    return made, stored


def excluded(name, entries):
    """ModelOpt: globs of a name, of a module that it is in or of one part of it; or parts side by side."""
    parts = name.split(".")
    names = [".".join(parts[:n + 1]) for n in range(len(parts))] + parts
    return any(inside(name, e) if not set(e) & set("*?[") else any(fnmatch.fnmatchcase(n, e) for n in names) for e in entries)


def modelopt(draw, modules, block):
    pool = patterns(draw, modules, block)
    exclude = several(draw, pool["glob"] + pool["name"])
    algo = draw.choice(["NVFP4", "FP8", "FP8_PB_WO", "W4A16_AWQ"])
    is_a = {"NVFP4": "nvfp4", "FP8": "fp8", "FP8_PB_WO": "fp8_block", "W4A16_AWQ": "int4"}
    made = {"quant_method": "modelopt", "quant_algo": algo, draw.choice(["exclude_modules", "ignore"]): exclude}
    return made, lambda name: "bf16" if excluded(name, exclude) else is_a[algo]


def modelopt_mixed(draw, modules, block):
    kinds = {"NVFP4": "nvfp4", "FP8": "fp8", "MXFP8": "fp8_block"}
    names = [name for name, _, _ in modules]
    keys = set(draw.sample(names, min(len(names), draw.randint(1, 200))))
    keys |= {".".join(name.split(".")[:draw.randint(4, 5)]) for name in draw.sample(names, 6)}
    layers = {key: draw.choice(sorted(kinds)) for key in sorted(keys)}
    made = {"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION",
            "quantized_layers": {key: {"quant_algo": algo} for key, algo in layers.items()}}

    def stored(name):
        while name:
            if name in layers:
                return kinds[layers[name]]
            name = name.rpartition(".")[0]
        return "bf16"
    return made, stored


def whole_parts(method, made, kind):
    def quantiser(draw, modules, block):
        listed = several(draw, patterns(draw, modules, block)["name"] + ["self_attn", f"{block}.experts", "gate"])
        key = {"bitsandbytes": "llm_int8_skip_modules"}.get(method, draw.choice(["modules_to_not_convert", "ignored_layers"]))
        return {"quant_method": method, **made, key: listed}, \
            lambda name: "bf16" if any(inside(name, entry) for entry in listed) else kind
    return quantiser


FAMILIES = [qwen3, qwen2, qwen3_next, deepseek, mixtral]
QUANTISERS = [compressed_tensors, compressed_tensors, gptq, awq, quark, modelopt, modelopt_mixed,
              whole_parts("fp8", {"weight_block_size": [128, 128]}, "fp8_block"),
              whole_parts("bitsandbytes", {"load_in_4bit": True}, "int4")]
KV = [({}, "bf16"), ({"kv_cache_scheme": {"num_bits": 8, "type": "float"}}, "fp8"), ({"kv_cache_quant_algo": "NVFP4"}, "nvfp4"),
      ({"kv_cache_quant_algo": "INT8"}, "int8"), ({"kv_cache_scheme": {"num_bits": 4, "type": "float", "group_size": 16}}, "nvfp4"),
      ({"kv_cache_scheme": None}, "bf16"), ({"kv_cache_quant_algo": "fp8"}, "fp8")]


# ---- what `check` says ----

def shares_of(text):
    """ "nvfp4", or "75.0 % nvfp4 + 25.0 % bf16". """
    found = re.findall(r"(<?[\d.]+) % (\w+)", text)
    return {name: float(share.lstrip("<")) for share, name in found} if found else {text.strip(): 100.0}


def said_of(folder):
    experiment = {"engine": {"name": "none"}, "cluster": str(root / "hardware/clusters/h200x8.json"), "model": "config.json",
                  "parallel": {"dp": 1, "tp": 1}, "scheduling": {"type": "prefill_first", "max_num_batched_tokens": 8192, "max_num_seqs": 64},
                  "workload": {"arrivals": {"type": "closed_loop", "concurrency": 8},
                               "lengths": {"type": "fixed", "prompt": 64, "output": 8},
                               "gating": {"type": "uniform", "requests": 8, "prompt_rows": 2, "decode_rows": 2}, "requests": 16},
                  "placement": "linear", "token_routing": {"prefill": "even", "decode": "even"},
                  "dispatch": {"prefill": "all_to_all", "decode": "all_to_all"}, "seed": 1}
    (folder / "exp.json").write_text(json.dumps(experiment))
    return checked(str(folder / "exp.json"))


def said_by_options(folder, engine):
    """The same of a deployment without a file, under an engine's settings."""
    return checked("--model", str(folder), "--gpu", "b200", "--concurrency", "8", "--engine", engine)


def checked(*arguments):
    done = subprocess.run([moesim, "check", *arguments], capture_output=True, text=True)
    if done.returncode != 0:
        return None, done.stderr
    text = " ".join(done.stdout.split())
    parts = re.search(r"precision: experts (.*?), (?:other weights (.*?)|attention (.*?), shared and dense FFNs (.*?)), "
                      r"KV cache (\w+),", text)
    experts, others, attention, ffn, kv_cache = parts.groups()
    weights = re.search(r"experts ([\d.]+), replicas [\d.]+, others ([\d.]+)", text)
    return {"experts": shares_of(experts), "attention": shares_of(others or attention), "ffn": shares_of(others or ffn),
            "kv_cache": kv_cache, "gb": [float(weights[1]), float(weights[2])]}, done.stderr


def expected(modules, stored):
    shares, gb = {}, {}
    for name, part, size in modules:
        of = stored(name)
        shares.setdefault(part, {})
        shares[part][of] = shares[part].get(of, 0) + size
        gb[part] = gb.get(part, 0) + size * BYTES[of] / 1e9
    return {part: {of: 100 * size / sum(all.values()) for of, size in all.items()} for part, all in shares.items()}, gb


failures = mixed = 0
with tempfile.TemporaryDirectory() as name:
    folder = pathlib.Path(name)
    for seed in range(first_seed, first_seed + checkpoints):
        draw = random.Random(seed)
        model, modules, block, gates = draw.choice(FAMILIES)(draw)
        quantisation, stored = draw.choice(QUANTISERS)(draw, modules, block)
        kv, kv_cache = draw.choice(KV)
        quantisation.update(kv)
        beside = folder / "hf_quant_config.json"
        beside.unlink(missing_ok=True)
        if quantisation["quant_method"] == "modelopt" and draw.random() < 0.5:
            del quantisation["quant_method"]
            beside.write_text(json.dumps({"producer": {"name": "modelopt"}, "quantization": quantisation}))
        else:
            model["quantization_config"] = quantisation
        (folder / "config.json").write_text(json.dumps(model))
        said, error = said_of(folder)
        want, gb = expected(modules, stored)
        wrong = [] if said else [error]
        for engine in ("none", "vllm", "sglang", "trtllm"):
            served, error = said_by_options(folder, engine)
            if served != said:
                wrong.append(f"as options under {engine}: {served or error}, by a file {said}")
        for part, shares in want.items() if said else []:
            got = {of: share for of, share in said[part].items()}
            if got.keys() != shares.keys() or any(abs(got[of] - shares[of]) > 0.11 for of in shares):
                wrong.append(f"{part}: said {got}, is {shares}")
            mixed += len(shares) > 1
        if said:
            if said["kv_cache"] != kv_cache:
                wrong.append(f"KV cache: said {said['kv_cache']}, is {kv_cache}")
            tables = 2 * 2 * VOCABULARY * H / 1e9 + 2 * gates * H / 1e9
            others = gb.get("attention", 0) + gb.get("ffn", 0) + tables
            if abs(said["gb"][0] - gb["experts"]) > 0.06 or abs(said["gb"][1] - others) > 0.06:
                wrong.append(f"GB: said {said['gb']}, is {gb['experts']:.2f} and {others:.2f}")
        if wrong:
            failures += 1
            print(f"FAILED: seed {seed}, {model['model_type']}, {json.dumps(quantisation)[:600]}")
            print("  " + "\n  ".join(wrong))

if mixed < checkpoints // 4:
    failures += 1
    print(f"FAILED: {mixed} parts in several precisions of {checkpoints} checkpoints: the patterns are too dull")
print(f"{checkpoints} checkpoints, {mixed} parts in several precisions, {failures} failures")
sys.exit(failures > 0)
