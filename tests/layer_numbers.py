#!/usr/bin/env python3
"""Do placements, loads and recordings of generated models go by the numbers that engines give layers, on the way in and out?

    tests/layer_numbers.py MOESIM [MODELS [SEED]]

Each model draws where its dense layers, its other mixers and the layers that draft stand. Its layers are numbered here from
what its family's keys mean, and each file is written in each engine's form.
"""
import json, pathlib, random, re, struct, sys, tempfile

from imports import Tensor, flat, npy, run, save_safetensors, save_torch

models = int(sys.argv[2]) if len(sys.argv) > 2 else 20
first_seed = int(sys.argv[3]) if len(sys.argv) > 3 else 1
GPUS, EXPERTS, K, SLOTS = 4, 16, 2, 20
DENSE_ROW = [slot % EXPERTS for slot in range(SLOTS)]  # SGLang's
failures = tried = 0


def check(holds, what):
    global failures, tried
    tried, failures = tried + 1, failures + (not holds)
    if not holds:
        print(f"FAILED: {name}, {what}")


# ---- families: keys, how many layers engines number, those with experts, those that draft behind them ----

def glm4_moe(draw):
    layers, first, drafts = draw.randint(3, 12), draw.randint(0, 2), draw.choice([0, 0, 1, 2])
    return {"n_routed_experts": EXPERTS, "n_shared_experts": 1, "first_k_dense_replace": first, "num_nextn_predict_layers": drafts}, \
        layers, range(first, layers), drafts


def qwen3_moe(draw):
    layers, step = draw.randint(3, 12), draw.choice([1, 2, 3])
    dense = draw.sample(range(layers), draw.randint(0, 2))
    return {"num_experts": EXPERTS, "decoder_sparse_step": step, "mlp_only_layers": dense}, \
        layers, [l for l in range(layers) if (l + 1) % step == 0 and l not in dense], 0


def ernie4_5_moe(draw):
    layers, interval = draw.randint(4, 12), draw.choice([1, 2])
    start, end = draw.randint(0, 2), draw.randint(layers - 2, layers - 1)
    return {"moe_num_experts": EXPERTS, "moe_k": K, "moe_num_shared_experts": 1, "moe_layer_start_index": start,
            "moe_layer_end_index": end, "moe_layer_interval": interval}, \
        layers, [l for l in range(start, end + 1) if (l + 1) % interval == 0], 0


def mimo_v2_flash(draw):
    flags = [draw.choice([0, 1, 1, 1]) for _ in range(draw.randint(3, 11))] + [1]
    return {"n_routed_experts": EXPERTS, "n_shared_experts": None, "moe_layer_freq": flags, "v_head_dim": 64, "sliding_window": 128,
            "hybrid_layer_pattern": [draw.choice([0, 1]) for _ in flags], "swa_num_attention_heads": 8, "swa_num_key_value_heads": 2,
            "swa_head_dim": 64, "swa_v_head_dim": 64}, len(flags), [l for l, moe in enumerate(flags) if moe], 1


def nemotron_h(draw):
    blocks = "M*E" + "".join(draw.choice(["ME", "ME", "M*E", "*E", "M"]) for _ in range(draw.randint(2, 6)))
    return {"hybrid_override_pattern": blocks, "mamba_num_heads": 8, "mamba_head_dim": 64, "ssm_state_size": 64, "n_groups": 8,
            "conv_kernel": 4, "chunk_size": 128, "n_routed_experts": EXPERTS, "n_shared_experts": 1,
            "moe_shared_expert_intermediate_size": 512}, len(blocks), [i for i, block in enumerate(blocks) if block == "E"], 0


FAMILIES = {glm4_moe: "Glm4MoeForCausalLM", qwen3_moe: "Qwen3MoeForCausalLM", ernie4_5_moe: "Ernie4_5_MoeForCausalLM",
            mimo_v2_flash: "MiMoV2FlashForCausalLM", nemotron_h: "NemotronHForCausalLM"}


# ---- what is written for a model, and read again ----

def numbered(text):
    """The layers of a TensorRT-LLM file."""
    return {int(layer): json.loads(slots) for layer, slots in re.findall(r"^  (\d+): (.*)$", text, re.M)}


def placements(work, draw, every_layer, moe, drafts):
    rows, behind = ({layer: draw.sample(range(EXPERTS), EXPERTS) + draw.sample(range(EXPERTS), SLOTS - EXPERTS) for layer in layers}
                    for layers in (moe, range(every_layer, every_layer + drafts)))
    every = [rows.get(layer, DENSE_ROW) for layer in range(every_layer)]

    def yaml(layers):
        return f"num_slots: {SLOTS}\ninitial_global_assignments:\n" + "".join(f"  {layer}: {slots}\n" for layer, slots in layers.items())

    def placed(file, content, form, expected=0):
        if isinstance(content, dict):
            save_torch(work / file, content)
        else:
            (work / file).write_bytes(content if isinstance(content, bytes) else content.encode())
        done = run("place", "--placement", work / file, "--model", work / "config.json", "--gpus", GPUS, "--format", form)
        check(done.returncode == expected and (expected == 0 or len(done.stderr.strip().splitlines()) == 1), f"{file}: {done.stderr}")
        return done.stdout
    stack, later = list(rows.values()), list(behind.values())
    torch_map = {"physical_to_logical_map": Tensor((every_layer, SLOTS), flat(every), "LongStorage")}
    for file, content in {"keys.yaml": yaml(rows), "keys_drafts.yaml": yaml(rows | behind), "map.pt": torch_map,
                          "map.json": json.dumps({"physical_to_logical_map": every}),
                          "map_drafts.json": json.dumps({"physical_to_logical_map": every + later}),
                          "moe.npy": npy((len(moe), SLOTS), flat(stack)),
                          "moe_drafts.npy": npy((len(moe) + drafts, SLOTS), flat(stack + later))}.items():
        check(numbered(placed(file, content, "trtllm")) == rows, f"{file} as TensorRT-LLM's: not layers {moe}, or other experts")
        lines = json.loads(placed(file, content, "sglang") or "{}").get("physical_to_logical_map", [])
        check(len(lines) == every_layer and all(lines[layer] == rows[layer] for layer in moe), f"{file} as SGLang's: {len(lines)} rows")
    other = draw.choice([layer for layer in range(every_layer) if layer not in moe] + [every_layer + drafts])
    placed("a layer too many.yaml", yaml(rows | {other: DENSE_ROW}), "trtllm", 2)
    if len(moe) > 1:
        placed("a layer too few.yaml", yaml(dict(list(rows.items())[1:])), "trtllm", 2)
    load, made = {layer: [draw.randint(1, 99) for _ in range(EXPERTS)] for layer in moe}, []
    for lines in (list(load.values()), [load.get(layer, [0] * EXPERTS) for layer in range(every_layer)]):
        (work / "load.json").write_text(json.dumps({"logical_count": [lines]}))
        made.append(run("place", "--policy", "eplb", "--load", work / "load.json", "--model", work / "config.json", "--gpus", GPUS,
                        "--slots", SLOTS, "--format", "trtllm").stdout)
    check(made[0] == made[1] and list(numbered(made[0])) == moe, f"a load: not layers {moe}, or two placements")


def recordings(work, draw, every_layer, moe, drafts):
    rows = [{layer: draw.sample(range(EXPERTS), K) for layer in moe} for _ in range(5)]
    every = [[row.get(layer, [0] * K) for layer in range(every_layer)] for row in rows]
    alone = [list(row.values()) for row in rows]
    log = [{"req_id": 1, "token_idx": t, "layer": layer, "topk_ids": ids} for t, row in enumerate(rows) for layer, ids in row.items()]

    def imported(form, file, content, expected=0):
        (work / file).write_bytes(content) if content else None
        out = pathlib.Path(tempfile.mkdtemp(dir=work)) / "out"
        done = run("trace", "import", "--from", form, work / file, "--model", work / "config.json", "-o", out)
        check(done.returncode == expected, f"{file}: exit {done.returncode}: {done.stderr}")
        if done.returncode == 0:
            raw = (out / "topk_ids.npy").read_bytes()
            layers, ids = json.loads((out / "meta.json").read_text())["layer_ids"], list(raw[10 + struct.unpack("<H", raw[8:10])[0]:])
            check(layers == moe and ids == flat(alone), f"{file}: layers {layers}, not {moe}, or other experts")
    for file, lines in {"all.npy": every, "moe.npy": alone,
                        "all_drafts.npy": [row + [draw.sample(range(EXPERTS), K)] * drafts for row in every]}.items():
        imported("vllm", file, npy((5, len(lines[0]), K), flat(lines)))
    imported("jsonl", "log.jsonl", "\n".join(map(json.dumps, log)).encode())
    imported("jsonl", "no_layer.jsonl", "\n".join(map(json.dumps, [*log, log[0] | {"layer": every_layer + drafts}])).encode(), 2)
    save_safetensors(work / "rank0_raw.safetensors", {f"100_{layer}": ([5, K], flat([row[layer] for row in rows])) for layer in moe})
    imported("trtllm", "rank0_raw.safetensors", None)


with tempfile.TemporaryDirectory() as folder:
    for seed in range(first_seed, first_seed + models):
        draw = random.Random(seed)
        family = draw.choice(list(FAMILIES))
        keys, every_layer, moe, drafts = family(draw)
        work, name, moe = pathlib.Path(folder) / str(seed), f"seed {seed}, {family.__name__} of {every_layer} + {drafts}", list(moe)
        work.mkdir()
        (work / "config.json").write_text(json.dumps({
            "model_type": family.__name__, "architectures": [FAMILIES[family]], "hidden_size": 512, "num_hidden_layers": every_layer,
            "vocab_size": 1000, "num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 64, "intermediate_size": 512,
            "moe_intermediate_size": 512, "num_experts_per_tok": K, "max_position_embeddings": 4096, **keys}))
        if moe:
            placements(work, draw, every_layer, moe, drafts)
            recordings(work, draw, every_layer, moe, drafts)

print(f"{models} models, {tried} checks, {failures} failures")
sys.exit(failures > 0)
