#!/usr/bin/env python3
"""Does a trace that is written as each engine records it, and imported again, come back as the same bytes? And are files
that were made to harm refused in one line?

  tests/imports.py MOESIM

Plain Python: .npy, .npz, .pt and .safetensors are written here, from what their formats say."""
import base64, collections, io, json, os, pathlib, pickle, random, struct, subprocess, sys, tempfile, types, zipfile

root = pathlib.Path(__file__).resolve().parents[1]
moesim = pathlib.Path(sys.argv[1]).resolve()  # also of tests/fuzz/make_corpus, which writes files with what is here
model_file = root / "models/zoo/deepseek_v2_lite.json"  # a dense layer, then 26 with 64 experts, of which 6
LAYERS, MOE, EXPERTS, K = 27, 26, 64, 6
failures = 0


def check(holds, what):
    global failures
    if not holds:
        failures += 1
        print(f"FAILED: {what}")


def run(*arguments):
    return subprocess.run([moesim, *map(str, arguments)], capture_output=True, text=True)


def npy(shape, values, code="B", descr="|u1"):
    head = f"{{'descr': '{descr}', 'fortran_order': False, 'shape': {tuple(shape)!r}, }}"
    head += " " * (-(10 + len(head) + 1) % 64) + "\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(head)) + head.encode() + struct.pack(f"<{len(values)}{code}", *values)


def flat(value):
    return [x for item in value for x in flat(item)] if isinstance(value, list) else [value]


# ---- torch.save() without torch: what it pickles are these names, by reference ----
torch, torch_utils = types.ModuleType("torch"), types.ModuleType("torch._utils")


def _rebuild_tensor_v2(*arguments):
    raise RuntimeError("is only named")


_rebuild_tensor_v2.__module__ = "torch._utils"
torch_utils._rebuild_tensor_v2 = _rebuild_tensor_v2
for name in ("IntStorage", "LongStorage", "FloatStorage"):
    setattr(torch, name, type(name, (), {"__module__": "torch", "__qualname__": name}))
torch._utils = torch_utils
sys.modules.update({"torch": torch, "torch._utils": torch_utils})
CODES = {"IntStorage": "i", "LongStorage": "q", "FloatStorage": "f"}


class Storage:
    def __init__(self, kind, values):
        self.kind, self.values = kind, values


class Tensor:
    def __init__(self, shape, values, kind="IntStorage"):
        self.shape, self.storage = tuple(shape), Storage(kind, values)

    def __reduce__(self):
        stride = [1]
        for extent in reversed(self.shape[1:]):
            stride.insert(0, stride[0] * extent)
        return _rebuild_tensor_v2, (self.storage, 0, self.shape, tuple(stride), False, collections.OrderedDict())


class View(Tensor):
    """A part of a storage."""

    def __init__(self, storage, offset, shape):
        self.storage, self.offset, self.shape = storage, offset, shape

    def __reduce__(self):
        return _rebuild_tensor_v2, (self.storage, self.offset, self.shape, (self.shape[1], 1), False, collections.OrderedDict())


def save_torch(file, value):
    storages, out = [], io.BytesIO()

    class Pickler(pickle.Pickler):
        def persistent_id(self, thing):
            if not isinstance(thing, Storage):
                return None
            if thing not in storages:
                storages.append(thing)
            return "storage", getattr(torch, thing.kind), str(storages.index(thing)), "cpu", len(thing.values)

    Pickler(out, protocol=2).dump(value)
    with zipfile.ZipFile(file, "w") as made:
        made.writestr("archive/data.pkl", out.getvalue())
        made.writestr("archive/byteorder", "little")
        for i, storage in enumerate(storages):
            made.writestr(f"archive/data/{i}", struct.pack(f"<{len(storage.values)}{CODES[storage.kind]}", *storage.values))
        made.writestr("archive/version", "3\n")


def save_safetensors(file, tensors):
    header, data = {"__metadata__": {"format": "pt"}}, b""
    for name, (shape, values) in tensors.items():
        raw = struct.pack(f"<{len(values)}q", *values)
        header[name] = {"dtype": "I64", "shape": shape, "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    text = json.dumps(header).encode()
    file.write_bytes(struct.pack("<Q", len(text)) + text + data)


class Trace:
    """A native trace: rows[request][row][layer] -> k ids."""

    def __init__(self, folder):
        self.folder = folder
        raw = (folder / "topk_ids.npy").read_bytes()
        ids = raw[10 + struct.unpack("<H", raw[8:10])[0]:]
        self.requests = [json.loads(line) for line in (folder / "requests.jsonl").read_text().splitlines()]
        row_bytes = MOE * K
        self.rows = [[[list(ids[r * row_bytes + m * K:r * row_bytes + m * K + K]) for m in range(MOE)]
                      for r in range(q["row_start"], q["row_start"] + q["num_tokens"])] for q in self.requests]

    def with_dense(self, request):
        return [[[0] * K] + row for row in self.rows[request]]


def import_as(form, work, paths, *options, expected=0):
    out = work / "imported"
    subprocess.run(["rm", "-rf", out])
    done = run("trace", "import", "--from", form, *paths, "--model", model_file, "-o", out, *options)
    check(done.returncode == expected, f"{form}: exit {done.returncode}: {done.stderr}{done.stdout}")
    return done, out


def same(form, work, trace, paths, *options, says=()):
    done, out = import_as(form, work, paths, *options)
    if done.returncode != 0:
        return
    for name in ("topk_ids.npy", "requests.jsonl"):
        check((out / name).read_bytes() == (trace.folder / name).read_bytes(), f"{form} {paths[0].name}: {name} differs")
    made, was = (json.loads((folder / "meta.json").read_text()) for folder in (out, trace.folder))
    for key in ("source", "license", "engine", "synthetic"):
        made.pop(key), was.pop(key)
    check(made == was, f"{form}: meta.json differs")
    for word in says:
        check(word in done.stdout, f"{form} {paths[0].name}: does not say \"{word}\": {done.stdout}")


def vllm(work, trace, tags):
    folder = work / "vllm"
    folder.mkdir()
    for i in range(len(trace.rows)):
        rows = trace.with_dense(i) + ([[[0] * K] * LAYERS] * 2 if i == 1 else [])  # rows that were never written
        (folder / f"request_{4 * i}.npy").write_bytes(npy((len(rows), LAYERS, K), flat(rows)))
    native = trace.folder / "requests.jsonl"
    same("vllm", work, trace, [folder], "--requests", native, says=["1 dense layer", "2 rows of padding"])
    done, _ = import_as("vllm", work, [folder])
    check("do not say where their prompt ends" in done.stdout, "vllm: prompts that are not known")
    notes = work / "notes.jsonl"
    notes.write_text("".join(json.dumps({"prompt_tokens": 10**6, "prompt_len": 1}) + "\n" for _ in trace.rows))
    done, _ = import_as("vllm", work, [folder], "--requests", notes)
    check('not read in --requests: "prompt_len"' in done.stdout, "vllm: a key of --requests that is not known")
    check(f"{len(trace.rows)} requests have fewer rows than tokens in their prompts" in done.stdout,
          "vllm: prompts longer than what was recorded")
    answers = work / "vllm.jsonl"
    with answers.open("w") as out:
        for i, request in enumerate(trace.requests):
            coded = base64.b64encode(npy((request["num_tokens"], LAYERS, K), flat(trace.with_dense(i)))).decode()
            out.write(json.dumps({"id": f"cmpl-{i}", "choices": [{"index": 0, "text": "x", "routed_experts": coded}],
                                  "usage": {"prompt_tokens": request["prompt_rows"],
                                            "completion_tokens": request["num_tokens"] - request["prompt_rows"] + 1}}) + "\n")
    same("vllm", work, trace, [answers], "--requests", tags)


def npz(work, trace, tags):
    folder = work / "npz"
    folder.mkdir()
    for i, request in enumerate(trace.requests):
        with zipfile.ZipFile(folder / f"{i}.npz", "w", zipfile.ZIP_DEFLATED if i % 2 else zipfile.ZIP_STORED) as made:
            made.writestr("routed_experts.npy", npy((request["num_tokens"], MOE, K), flat(trace.rows[i]), "H", "<u2"))
            made.writestr("prompt_token_ids.npy", npy((request["prompt_rows"],), [7] * request["prompt_rows"], "q", "<i8"))
    same("npz", work, trace, [folder], "--requests", tags)


def jsonl(work, trace, native):
    file = work / "log.jsonl"
    with file.open("w") as out:
        for i, rows in enumerate(trace.rows):
            for layer in range(MOE):  # layer after layer, as a hook sees them
                for token, row in enumerate(rows):
                    out.write(json.dumps({"type": "route", "req_id": f"r{i}", "token_idx": token, "layer": layer + 1,
                                          "topk_ids": row[layer], "topk_weights": [0.1] * K}) + "\n")
    same("jsonl", work, trace, [file], "--requests", native)
    lists = work / "lists.jsonl"
    lists.write_text("".join(json.dumps({"routed_experts": rows, "prompt_tokens": request["prompt_rows"]}) + "\n"
                             for rows, request in zip(trace.rows, trace.requests)))
    same("jsonl", work, trace, [lists], "--requests", native)


def sglang(work, trace, tags):
    slots = EXPERTS + 8
    draw = random.Random(1)
    holds = [draw.sample(range(EXPERTS), EXPERTS) + draw.sample(range(EXPERTS), 8) for _ in range(LAYERS)]
    of_expert = [[[s for s in range(slots) if holds[layer][s] == e] for e in range(EXPERTS)] for layer in range(LAYERS)]

    def record(number, mode, tokens, lengths):
        """tokens: (request, row) of a batch."""
        ids = [[[-1] * 8 if layer == 0 else
                [draw.choice(of_expert[layer][e]) for e in trace.rows[q][row][layer - 1]] + [-1] * (8 - K)
                for q, row in tokens] for layer in range(LAYERS)]
        counts = [[flat(ids[layer]).count(s) for s in range(slots)] for layer in range(LAYERS)]
        return {"forward_pass_id": number, "rank": 0, "gatherer_key": "primary", "input_ids": [9] * len(tokens),
                "positions": [row for _, row in tokens], "extend_seq_lens": lengths, "forward_mode": mode,
                "topk_ids_of_layer": Tensor((LAYERS, len(tokens), 8), flat(ids)), "misc_objects": [],
                "global_physical_count": Tensor((LAYERS, slots), flat(counts))}

    records, prompts = [], [q["prompt_rows"] for q in trace.requests]
    count = len(prompts)
    # Prompts two at a time, of which the second is cut into two chunks; the second two beside the first two, which decode
    # (a mixed batch). Then all decode.
    for first in range(0, count, 2):
        half = prompts[first + 1] // 2
        batch = [(first, row) for row in range(prompts[first])] + [(first + 1, row) for row in range(half)]
        decodes = [(q, prompts[q]) for q in range(first)]
        records.append(record(len(records), 3 if decodes else 1, batch + decodes, [prompts[first], half] + [1] * len(decodes)))
        rest = [(first + 1, row) for row in range(half, prompts[first + 1])]
        records.append(record(len(records), 1, rest, [len(rest)]))
    done = [prompts[q] + (1 if q < count - 2 else 0) for q in range(count)]
    while any(done[q] < trace.requests[q]["num_tokens"] for q in range(count)):
        batch = [(q, done[q]) for q in range(count) if done[q] < trace.requests[q]["num_tokens"]]
        records.append(record(len(records), 2, batch, None))
        done = [row + 1 for row in done]
    placed = Tensor((LAYERS, slots), flat(holds), "LongStorage")
    file = work / "per_token.pt"
    save_torch(file, {"records": records, "last_physical_to_logical_map": placed})
    same("sglang", work, trace, [file], "--requests", tags, says=["physical ids were mapped", "columns beyond"])

    expected = [[[sum(row[layer].count(e) for rows in trace.rows for row in rows) for e in range(EXPERTS)]]
                for layer in range(MOE)]
    counted = [{key: value for key, value in one.items() if key in ("forward_pass_id", "rank", "global_physical_count")}
               for one in records]
    save_torch(work / "per_pass.pt", {"records": counted, "last_physical_to_logical_map": placed})
    stat = [[[0] * EXPERTS] + [layer[0] for layer in expected], [[0] * EXPERTS] * LAYERS]  # the second was never filled
    save_torch(work / "stat.pt", {"rank": 0, "logical_count": Tensor((2, LAYERS, EXPERTS), flat(stat)),
                                  "average_utilization_rate_over_window": None})
    for name, steps in (("per_pass.pt", len(records)), ("stat.pt", 1)):
        done, out = import_as("sglang", work, [work / name])
        if done.returncode == 0:
            raw = (out / "expert_counts.npy").read_bytes()
            values = struct.unpack(f"<{steps * MOE * EXPERTS}q", raw[10 + struct.unpack("<H", raw[8:10])[0]:])
            sums = [sum(values[s * MOE * EXPERTS + i] for s in range(steps)) for i in range(MOE * EXPERTS)]
            check(sums == flat(expected), f"{name}: counts differ")
            done = run("place", "--policy", "eplb", "--load", out / "expert_counts.npy", "--gpus", 8, "-o", work / "p.json")
            check(done.returncode == 0, f"{name}: place --load: {done.stderr}")

    # With DeepEP each of two ranks counts its own slots: one file lacks experts, both have all of the whole's.
    _, out = import_as("sglang", work, [work / "per_pass.pt"])
    whole = (out / "expert_counts.npy").read_bytes()
    for rank in (0, 1):
        own = [one | {"rank": rank, "global_physical_count": Tensor((LAYERS, slots), [
            tokens if (i % slots >= slots // 2) == (rank == 1) else 0
            for i, tokens in enumerate(one["global_physical_count"].storage.values)])} for one in counted]
        save_torch(work / f"rank_{rank}.pt", {"records": own, "last_physical_to_logical_map": placed})
    for ranks in ([0], [1], [0, 1]):
        done, out = import_as("sglang", work, [work / f"rank_{rank}.pt" for rank in ranks])
        check(("give the files of all ranks" in done.stdout) == (len(ranks) == 1), f"counts of ranks {ranks}: {done.stdout}")
    check((out / "expert_counts.npy").read_bytes() == whole, "the counts of two ranks are not those of both")

    loads = []
    for load in (work / "stat.pt", work / "stat.json"):
        (work / "stat.json").write_text(json.dumps({"logical_count": stat}))
        done = run("place", "--policy", "eplb", "--load", load, "--gpus", 8, "-o", work / "p.json")
        check(done.returncode == 0, f"place --load {load.name}: {done.stderr}")
        loads.append((work / "p.json").read_bytes())
    check(loads[0] == loads[1], "a stat.pt and the same JSON are placed alike")
    done = run("place", "--policy", "eplb", "--load", work / "per_pass.pt", "--gpus", 8)
    check(done.returncode == 2 and "trace import" in done.stderr, f"place --load per_pass.pt: {done.stderr}")

    # Without the map the ids are what --placement says.
    save_torch(file, {"records": records})
    (work / "slots.json").write_text(json.dumps({"num_gpus": 8, "num_experts": EXPERTS, "physical_to_logical_map": holds}))
    same("sglang", work, trace, [file], "--requests", tags, "--placement", work / "slots.json")

    answers = work / "sglang.json"
    answers.write_text(json.dumps([
        {"text": "x", "meta_info": {"prompt_tokens": q["prompt_rows"], "completion_tokens": q["num_tokens"] - q["prompt_rows"] + 1, "routed_experts":
                                    base64.b64encode(struct.pack(f"<{len(ids)}i", *ids)).decode()}}
        for i, q in enumerate(trace.requests) for ids in [flat(trace.with_dense(i))]]))
    same("sglang", work, trace, [answers], "--requests", tags)


def trtllm(work, trace, native):
    folder = work / "trtllm"
    folder.mkdir()
    (folder / "meta_info.json").write_text(json.dumps({"num_experts": EXPERTS, "num_experts_per_token": K}))
    save_safetensors(folder / "rank0_raw.safetensors",
                     {f"{100 + i}_{layer + 1}": ([len(rows), K], flat([row[layer] for row in rows]))
                      for i, rows in enumerate(trace.rows) for layer in range(MOE)})
    same("trtllm", work, trace, [folder], "--requests", native)
    (folder / "rank0_raw.safetensors").unlink()
    for rank in range(2):
        save_safetensors(folder / f"rank{rank}.safetensors", {f"100_{layer + 1}": ([EXPERTS], [rank + layer] * EXPERTS)
                                                              for layer in range(MOE)})
    done, out = import_as("trtllm", work, [folder])
    if done.returncode == 0:
        raw = (out / "expert_counts.npy").read_bytes()
        values = struct.unpack(f"<{MOE * EXPERTS}q", raw[10 + struct.unpack("<H", raw[8:10])[0]:])
        check(list(values) == [2 * (i // EXPERTS) + 1 for i in range(MOE * EXPERTS)], "trtllm: counts differ")
    # Ranks of two pipeline stages.
    for rank in range(2):
        save_safetensors(folder / f"rank{rank}.safetensors", {
            f"{iteration}_{layer + 1}": ([EXPERTS], [layer + iteration] * EXPERTS)
            for iteration in (5, 6) for layer in range(rank * MOE // 2, (rank + 1) * MOE // 2)})
    done, out = import_as("trtllm", work, [folder])
    if done.returncode == 0:
        raw = (out / "expert_counts.npy").read_bytes()
        values = struct.unpack(f"<{2 * MOE * EXPERTS}q", raw[10 + struct.unpack("<H", raw[8:10])[0]:])
        check(list(values) == [layer + i for i in (5, 6) for layer in range(MOE) for _ in range(EXPERTS)], "trtllm: counts of stages differ")
    # With EPLB on the engine counts slots, and the file that placed them says whose they are.
    slots = EXPERTS + 8
    for rank in range(2):
        save_safetensors(folder / f"rank{rank}.safetensors", {f"100_{layer + 1}": ([slots], [1] * slots) for layer in range(MOE)})
    (folder / "meta_info.json").write_text(json.dumps({"num_experts": slots, "num_experts_per_token": K}))
    eplb = work / "eplb.yaml"
    eplb.write_text(f"num_slots: {slots}\nlayer_updates_per_iter: 0\ninitial_global_assignments:\n" + "".join(
        f"  {layer + 1}: {[i % EXPERTS for i in range(slots)]}\n" for layer in range(MOE)))
    done, out = import_as("trtllm", work, [folder], "--placement", eplb, "--gpus", 8)
    if done.returncode == 0:
        raw = (out / "expert_counts.npy").read_bytes()
        values = struct.unpack(f"<{MOE * EXPERTS}q", raw[10 + struct.unpack("<H", raw[8:10])[0]:])
        check(list(values) == ([4] * 8 + [2] * (EXPERTS - 8)) * MOE, "trtllm: counts of slots differ")
    done, _ = import_as("trtllm", work, [folder], expected=2)
    check("--placement takes its file" in done.stderr, f"trtllm: slots without a map: {done.stderr}")
    # Such files do not say how many GPUs there are.
    (work / "tokens.json").write_text(json.dumps({"tokens": [[1] * EXPERTS] * MOE}))
    done = run("replay", "--tokens", work / "tokens.json", "--placement", eplb, "--routing", "metro", "--gpus", 8, "--json")
    check(done.returncode == 0, f"replay --tokens of an EPLB file: {done.stderr}")


def hf(work, trace, native):
    folder = work / "hf"
    folder.mkdir()
    for i, rows in enumerate(trace.rows):
        layers = []
        for layer in range(MOE):
            logits = [0.0] * (len(rows) * EXPERTS)
            for token, row in enumerate(rows):
                for place, expert in enumerate(row[layer]):
                    logits[token * EXPERTS + expert] = 8.0 - place
            layers.append(logits)
        if i == 0:
            (folder / "0.npy").write_bytes(npy((MOE, len(rows), EXPERTS), flat(layers), "f", "<f4"))
        elif i == 1:
            with zipfile.ZipFile(folder / "1.npz", "w", zipfile.ZIP_DEFLATED) as made:
                for layer, logits in enumerate(layers):
                    made.writestr(f"arr_{layer}.npy", npy((len(rows), EXPERTS), logits, "e", "<f2"))
        else:
            # Dense layers have none; and parts of one tensor lie in one storage.
            whole = Storage("FloatStorage", flat(layers))
            save_torch(folder / f"{i}.pt", {"router_logits": (None, *(
                View(whole, layer * len(rows) * EXPERTS, (len(rows), EXPERTS)) for layer in range(MOE)))})
    same("hf", work, trace, [folder], "--requests", native)


def config(layers, experts, k, step=1, drafts=0):
    """A Qwen3-MoE with experts in every `step`-th layer and a module that drafts."""
    return {"architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "hidden_size": 1024, "intermediate_size": 2048,
            "moe_intermediate_size": 512, "num_hidden_layers": layers, "num_attention_heads": 8, "num_key_value_heads": 4,
            "head_dim": 128, "num_experts": experts, "num_experts_per_tok": k, "vocab_size": 32000, "mlp_only_layers": [],
            "max_position_embeddings": 8192, "decoder_sparse_step": step, "num_nextn_predict_layers": drafts}


def small(work, said, form, model, name, content, *words, expected=0, ids=None, numbers=None):
    """A small recording of a small model: what it becomes, and the words that are said."""
    folder = pathlib.Path(tempfile.mkdtemp(dir=work))
    (folder / "model.json").write_text(json.dumps(model))
    content(folder / name) if callable(content) else (folder / name).write_bytes(content)
    done = run("trace", "import", "--from", form, folder / name, "--model", folder / "model.json", "-o", folder / "out")
    text = done.stdout + done.stderr
    check(done.returncode == expected and all(word in text for word in words), f"{said}: exit {done.returncode}: {text}")
    check(expected != 2 or len(done.stderr.strip().splitlines()) == 1, f"{said}: more than a line: {text}")
    if ids is not None and done.returncode == 0:
        raw = (folder / "out/topk_ids.npy").read_bytes()
        check(list(raw[10 + struct.unpack("<H", raw[8:10])[0]:]) == flat(ids), f"{said}: other ids")
    if numbers is not None and done.returncode == 0:
        check(json.loads((folder / "out/meta.json").read_text())["layer_ids"] == numbers, f"{said}: layers are not {numbers}")
        done = run("place", "--policy", "linear", "--trace", folder / "out", "--gpus", 4, "--format", "trtllm")
        keys = [int(line.split(":")[0]) for line in done.stdout.splitlines() if line.startswith("  ")]
        check(keys == numbers, f"{said}: place writes layers {keys}: {done.stderr}")
    return text


def rows_and_layers(work):
    draw = random.Random(2)

    def rows(tokens, layers, experts, k):
        return [[draw.sample(range(experts), k) for _ in range(layers)] for _ in range(tokens)]

    def answer(rows, prompt):
        coded = base64.b64encode(npy((len(rows), len(rows[0]), len(rows[0][0])), flat(rows))).decode()
        return json.dumps({"id": "a", "choices": [{"routed_experts": coded}], "usage": {"prompt_tokens": prompt}}).encode()

    # Rows of prompts in a prefix cache were never written.
    for k, fill in ((1, 0), (1, 255), (2, 0), (2, 255)):
        real = rows(20, 4, 16, k)
        text = small(work, f"unwritten rows, top-{k}", "vllm", config(4, 16, k), "a.json",
                     answer([[[fill] * k] * 4] * 100 + real, 100), "20 tokens", "100 rows of padding", ids=real)
        check("all were taken" not in text, f"unwritten rows, top-{k}: a prompt was called short")
    few = [[[0], [0]]] + rows(5, 2, 4, 1)
    small(work, "a row of expert 0 in two layers", "vllm", config(2, 4, 1), "a.npy", npy((6, 2, 1), flat(few)), "kept: ", ids=few)
    partly = rows(20, 4, 16, 2)
    partly[7][2] = [0, 0]
    small(work, "a row partly written", "vllm", config(4, 16, 2), "a.npy", npy((20, 4, 2), flat(partly)),
          "row 7, layer 2: was not written", expected=2)
    never = [row[:2] + [[0]] + row[3:] for row in rows(60, 4, 16, 1)]
    small(work, "a layer never written", "vllm", config(4, 16, 1), "a.npy", npy((60, 4, 1), flat(never)),
          "layer 2 was never written", expected=2)
    # Dense layers between, and a module that drafts behind.
    real = rows(6, 2, 8, 2)
    among = [[[0, 0], a, [0, 0], b, [1, 2]] for a, b in real]
    small(work, "a drafting layer's rows", "vllm", config(4, 8, 2, step=2, drafts=1), "a.npy", npy((6, 5, 2), flat(among)),
          "1 layers that draft", "2 dense layers", ids=real, numbers=[1, 3])
    # Blocks of Nemotron-H.
    blocks = "MEMEM*EMEME"
    nemotron = {"architectures": ["NemotronHForCausalLM"], "model_type": "nemotron_h", "hidden_size": 512, "vocab_size": 1000,
                "hybrid_override_pattern": blocks, "num_hidden_layers": len(blocks), "num_attention_heads": 8,
                "num_key_value_heads": 2, "head_dim": 64, "mamba_num_heads": 8, "mamba_head_dim": 64, "ssm_state_size": 64,
                "n_groups": 8, "conv_kernel": 4, "chunk_size": 128, "intermediate_size": 512, "moe_intermediate_size": 512,
                "n_routed_experts": 8, "num_experts_per_tok": 2, "n_shared_experts": 1, "moe_shared_expert_intermediate_size": 512,
                "max_position_embeddings": 4096, "tie_word_embeddings": False}
    numbers = [i for i, block in enumerate(blocks) if block == "E"]
    real = rows(3, len(numbers), 8, 2)
    among = [[row[numbers.index(i)] if i in numbers else [0, 0] for i in range(len(blocks))] for row in real]
    small(work, "rows of blocks", "vllm", nemotron, "a.npy", npy((3, len(blocks), 2), flat(among)), ids=real, numbers=numbers)
    bare = base64.b64encode(struct.pack(f"<{len(flat(among))}i", *flat(among))).decode()
    small(work, "bare ids of blocks", "sglang", nemotron, "a.json",
          json.dumps({"meta_info": {"prompt_tokens": 2, "routed_experts": bare}}).encode(), ids=real, numbers=numbers)
    shaped = {"data": base64.b64encode(bytes(flat(among))).decode(), "shape": [3, len(blocks), 2], "start": 0, "dtype": "uint8"}
    dynamo = lambda more: json.dumps({"choices": [{"routed_experts": shaped | more}], "usage": {"prompt_tokens": 2}}).encode()
    small(work, "ids with a shape", "vllm", nemotron, "a.json", dynamo({}), ids=real, numbers=numbers)
    small(work, "ids of another shape", "vllm", nemotron, "a.json", dynamo({"shape": [4, len(blocks), 2]}), "not of their shape", expected=2)
    small(work, "ids of no type", "vllm", nemotron, "a.json", dynamo({"dtype": "float8"}), '"dtype"', expected=2)
    log = "".join(json.dumps({"req_id": 1, "token_idx": t, "layer": layer, "topk_ids": ids}) + "\n"
                  for t, row in enumerate(real) for layer, ids in zip(numbers, row))
    small(work, "a log of blocks", "jsonl", nemotron, "a.jsonl", log.encode(), ids=real, numbers=numbers)
    small(work, "a log of no layer", "jsonl", nemotron, "a.jsonl", b'{"layer": 11, "topk_ids": [1, 2]}', "layer 11", expected=2)
    # Pieces of one answer.
    pieces = answer(rows(4, 4, 8, 2), 3)
    small(work, "pieces", "vllm", config(4, 8, 2), "a.jsonl", pieces + b"\n" + pieces, "a.jsonl:2", "piece of request", expected=2)
    # vLLM's later versions: the prompt's rows once, those of each choice apart.
    real = rows(10, 4, 8, 2)

    def coded(part):
        return base64.b64encode(npy((len(part), 4, 2), flat(part))).decode()
    apart = {"id": "a", "prompt_routed_experts": coded(real[:6]), "usage": {"prompt_tokens": 6},
             "choices": [{"index": 0, "routed_experts": coded(real[6:9])}, {"index": 1, "routed_experts": coded(real[9:])}]}
    small(work, "a prompt's rows apart", "vllm", config(4, 8, 2), "a.json", json.dumps(apart).encode(),
          "16 tokens of 2 requests (12 of prompts)", ids=real[:9] + real[:6] + real[9:])
    # Several prompts in one request: the usage is their sum, and a choice may have its own prompt's ids.
    two = {"id": "a", "usage": {"prompt_tokens": 10, "completion_tokens": 2},
           "choices": [{"index": i, "routed_experts": coded(real[5 * i:5 * i + 5])} for i in range(2)]}
    small(work, "two prompts", "vllm", config(4, 8, 2), "a.json", json.dumps(two).encode(),
          "10 tokens of 2 requests (10 of prompts)", "2 of 2 requests do not say", ids=real)
    for choice, tokens in zip(two["choices"], (3, 4)):
        choice["prompt_token_ids"] = [7] * tokens
    small(work, "two prompts with their ids", "vllm", config(4, 8, 2), "a.json", json.dumps(two).encode(),
          "10 tokens of 2 requests (7 of prompts)", ids=real)
    # Rows that were asked for from the prompt's fifth token on.
    part = {"id": "a", "usage": {"prompt_tokens": 8, "completion_tokens": 7}, "choices": [{"routed_experts": coded(real)}]}
    small(work, "rows from a later token on", "vllm", config(4, 8, 2), "a.json", json.dumps(part).encode(),
          "10 tokens of 1 requests (4 of prompts)", ids=real)
    # Lines of vllm run-batch, of which one failed and one was aborted.
    lines = [{"custom_id": "0", "response": {"status_code": 200, "body": apart}, "error": None},
             {"custom_id": "1", "response": {"status_code": 400, "body": {"message": "no"}}, "error": {"code": 400}},
             {"custom_id": "2", "response": {"body": {"id": "b", "choices": [{"routed_experts": None}]}}}]
    small(work, "a batch's lines", "vllm", config(4, 8, 2), "a.jsonl", "\n".join(map(json.dumps, lines)).encode(),
          "16 tokens of 2 requests (12 of prompts)", "2 responses that failed", ids=real[:9] + real[:6] + real[9:])
    small(work, "failed lines alone", "vllm", config(4, 8, 2), "a.jsonl", json.dumps(lines[2]).encode(), "routed_experts", expected=2)
    # The same split of a request as arrays.
    def split(file):
        with zipfile.ZipFile(file, "w") as made:
            made.writestr("routed_experts.npy", npy((4, 4, 2), flat(real[6:])))
            made.writestr("prompt_routed_experts.npy", npy((6, 4, 2), flat(real[:6])))
    small(work, "a split request", "vllm", config(4, 8, 2), "a.npz", split, "10 tokens of 1 requests (6 of prompts)", ids=real)
    # Every tensor-parallel rank of SGLang dumps the same tokens.
    def rank(file):
        for number in range(2):
            draw_ids = random.Random(7)
            records = [{"forward_pass_id": i, "forward_mode": 1 if i == 0 else 2, "rank": number,
                        "input_ids": [5] * tokens, "positions": list(range(at, at + tokens)),
                        "extend_seq_lens": [tokens] if i == 0 else None,
                        "topk_ids_of_layer": Tensor((4, tokens, 2), flat([draw_ids.sample(range(8), 2) for _ in range(4 * tokens)]))}
                       for i, (at, tokens) in enumerate([(0, 3), (3, 1)])]
            file.mkdir(exist_ok=True)
            save_torch(file / f"dump_{number}.pt", {"records": records})
        (file / ".DS_Store").write_bytes(b"x")
    small(work, "ranks that dump the same", "sglang", config(4, 8, 2), "folder", rank,
          "4 tokens of 1 requests (3 of prompts)", "1 files of ranks")
    # A load in a layer without experts is of another model.
    counts = Tensor((1, 2, 4), [5] * 4 + [1, 2, 3, 4])
    small(work, "counts of a dense layer", "sglang", config(2, 4, 1, step=2), "a.pt",
          lambda file: save_torch(file, {"rank": 0, "logical_count": counts}), "has tokens in layer 0", expected=2)
    # Passes of SGLang: an idle rank's have no token, those that verify drafts do not say what was accepted.
    def passes(*modes):
        at, records = 0, []
        for mode, tokens in modes:
            ids = Tensor((4, tokens, 2), flat([draw.sample(range(8), 2) for _ in range(4 * tokens)]))
            records.append({"forward_mode": mode, "positions": list(range(at, at + tokens)), "topk_ids_of_layer": ids,
                            "extend_seq_lens": [tokens] if mode == 1 else None})
            at += tokens
        return lambda file: save_torch(file, {"records": records})

    small(work, "an idle pass", "sglang", config(4, 8, 2), "a.pt", passes((1, 3), (4, 0), (2, 1), (4, 0), (2, 1)),
          "5 tokens of 1 requests (3 of prompts)")
    small(work, "a pass of another kind", "sglang", config(4, 8, 2), "a.pt", passes((1, 3), (8, 2)), "forward_mode 8", expected=2)
    for mode in (5, 6, 7):
        small(work, "a pass over drafts", "sglang", config(4, 8, 2), "a.pt", passes((1, 3), (mode, 2)), "drafts", expected=2)
    # A bias decides, which logits do not show.
    glm = config(4, 8, 2) | {"model_type": "glm4_moe", "architectures": ["Glm4MoeForCausalLM"], "n_routed_experts": 8,
                             "first_k_dense_replace": 0, "n_shared_experts": 1}
    small(work, "a bias", "hf", glm, "a.npy", npy((4, 1, 8), [0.5] * 32, "f", "<f4"), "with a bias", expected=2)
    # Dense layers' rows of a load are zeros.
    moe = [[10 + i for i in range(16)]] * 5
    scores = []
    for name, load in (("all", [[0] * 16] * 3 + moe), ("moe", moe)):
        (work / "load.json").write_text(json.dumps({"logical_count": [load]}))
        scores.append(run("place", "--policy", "eplb", "--gpus", 4, "--slots", 20, "--load", work / "load.json", "--score", "--json").stdout)
    check(scores[0] == scores[1] != "", f"dense rows of a load: {scores}")


def refused(work, name, form, content, *words):
    file = work / name
    file.write_bytes(content)
    done, out = import_as(form, work, [file], expected=2)
    lines = done.stderr.strip().splitlines()
    check(len(lines) == 1 and not out.exists(), f"{name}: {len(lines)} lines: {done.stderr[:300]}")
    for word in words:
        check(word in done.stderr, f"{name}: does not say \"{word}\": {done.stderr}")


def hostile(work, trace):
    def zipped(members, packing=zipfile.ZIP_STORED):
        out = io.BytesIO()
        with zipfile.ZipFile(out, "w", packing) as made:
            for name, content in members.items():
                made.writestr(name, content)
        return out.getvalue()

    class Code:
        def __reduce__(self):
            return os.system, (f"touch {work}/was_run",)

    for protocol in (2, 4):
        refused(work, "code.pt", "sglang", zipped({"archive/data.pkl": pickle.dumps(Code(), protocol)}), "posix.system", "is not run")
    for text in (b"cbuiltins\neval\n(X\x01\0\0\0xtR.", b"c__builtin__\ngetattr\n.", b"\x80\x02(X\x01\0\0\0xios\nsystem\n.", b"\x80\x02}b."):
        refused(work, "opcodes.pt", "sglang", zipped({"archive/data.pkl": text}))
    check(not (work / "was_run").exists(), "a pickle's code was run")
    whole = (work / "per_token.pt").read_bytes()
    for length in (1, 4, 100, len(whole) // 2, len(whole) - 1):
        refused(work, "short.pt", "sglang", whole[:length])
    refused(work, "empty.pt", "sglang", b"")
    refused(work, "bomb.pt", "sglang", zipped({"archive/data.pkl": bytes(100 << 20)}, zipfile.ZIP_DEFLATED), "would unpack to")
    refused(work, "bomb.npz", "npz", zipped({"routed_experts.npy": bytes(100 << 20)}, zipfile.ZIP_DEFLATED), "would unpack to")
    # One storage of four numbers, and a tensor that says it has a million.
    lying = Tensor((1000, 1000), [0] * 4)
    save_torch(work / "lying.pt", {"rank": 0, "logical_count": lying})
    refused(work, "lying.pt", "sglang", (work / "lying.pt").read_bytes(), "beyond its storage")
    refused(work, "junk.safetensors", "trtllm", b"\xff" * 40, "not a .safetensors")
    refused(work, "text.npy", "vllm", b"not numpy", "not an .npy")
    refused(work, "layers.npy", "vllm", npy((1, 46, K), [0] * 46 * K), "46 layers", "27", "26")
    refused(work, "twice.npy", "vllm", npy((1, MOE, K), [1, 1, 2, 3, 4, 5] * MOE), "expert 1 twice", "row 0, layer 1")
    refused(work, "beyond.npy", "vllm", npy((1, MOE, K), [1, 64, 2, 3, 4, 5] * MOE), "ids are 0 to 63")
    refused(work, "dense.npy", "vllm", npy((1, LAYERS, K), [0, 1, 2, 3, 4, 5] * LAYERS), "dense")
    refused(work, "base.json", "vllm", b'{"choices": [{"routed_experts": "?!"}]}', "not base64")
    refused(work, "none.json", "vllm", b'{"choices": [{"text": "x"}]}', "routed_experts")
    done = run("trace", "import", "--from", "vlm", work, "--model", model_file, "-o", work / "x")
    check(done.returncode == 2 and "one of: vllm" in done.stderr, f"a form that is none: {done.stderr}")


def counts(work):
    """A trace drawn from counts: an array of an .npz for each workload, experts as often as counted, none twice."""
    steps = {"law": [8] * 7 + [1] * 57, "maths": [1] * 57 + [8] * 7}
    with zipfile.ZipFile(work / "counts.npz", "w", zipfile.ZIP_DEFLATED) as made:
        for tag, layer in steps.items():
            made.writestr(f"{tag}.npy", npy((MOE, 64), layer * MOE, "q", "<i8"))
    gating = {"type": "counts", "file": str(work / "counts.npz"), "requests": 4, "prompt_rows": 0, "decode_rows": 300}
    for tags in (["law", "maths"], ["maths"]):
        done = run("trace", "generate", "--model", model_file, "--gating", json.dumps(gating | {"workloads": tags}), "-o", work / tags[0])
        check(done.returncode == 0, f"counts: {done.stderr}")
        trace = Trace(work / tags[0])
        check([r["workload"] for r in trace.requests] == tags * (4 // len(tags)), f"counts: workloads are not {tags} in turn")
        for request, rows in zip(trace.requests, trace.rows):
            layers = [layer for row in rows for layer in row]
            high = sum(e < 7 if request["workload"] == "law" else e >= 57 for layer in layers for e in layer)
            expected = len(layers) * K * 56 / 113
            check(abs(high - expected) < 5 * (expected / 2) ** 0.5, f"counts: {high} of the hot experts, expected {expected}")
            check(all(len(set(layer)) == K for layer in layers), "counts: an expert twice")
    done = run("trace", "generate", "--model", model_file, "--gating", json.dumps(gating | {"workloads": ["art"]}), "-o", work / "x")
    check(done.returncode == 2 and 'no array "art"' in done.stderr, f"counts of a workload that is none: {done.stderr}")
    # SGLang's dump has a row for the dense layer too; shares are a load as counts are.
    load = [[0] * 64] + [list(range(1, 65))] * MOE
    save_torch(work / "counts.pt", {"logical_count": Tensor((1, LAYERS, 64), flat(load), "LongStorage")})
    (work / "shares.npy").write_bytes(npy((MOE, 64), [n / 2080 for n in flat(load[1:])], "d", "<f8"))
    traces = []
    for name in ("counts.pt", "shares.npy"):
        one = {"type": "counts", "file": str(work / name), "requests": 2, "prompt_rows": 0, "decode_rows": 100}
        done = run("trace", "generate", "--model", model_file, "--gating", json.dumps(one), "-o", work / f"of_{name}")
        check(done.returncode == 0, f"counts of {name}: {done.stderr}")
        traces.append([e for rows in Trace(work / f"of_{name}").rows for e in flat(rows)])
    for ids in traces:
        high = sum(e >= 32 for e in ids) / len(ids)
        check(abs(high - 1552 / 2080) < .03, f"counts: {high} of the upper half, expected {1552 / 2080}")
    # A load in a layer without experts is of another model, for both readers.
    (work / "dense.npy").write_bytes(npy((LAYERS, 64), [1] * LAYERS * 64, "q", "<i8"))
    one = {"type": "counts", "file": str(work / "dense.npy"), "requests": 2}
    for done in (run("trace", "generate", "--model", model_file, "--gating", json.dumps(one), "-o", work / "x"),
                 run("place", "--policy", "eplb", "--load", work / "dense.npy", "--gpus", 4, "--model", model_file)):
        check(done.returncode == 2 and "has tokens in layer 0, which has no experts" in done.stderr, f"a dense layer's load: {done.stderr}")
    done = run("place", "--policy", "eplb", "--load", work / "shares.npy", "--gpus", 4, "--model", root / "models/zoo/olmoe_1b_7b.json")
    check(done.returncode == 2, f"a load of another model: {done.stderr}")


def main():
    with tempfile.TemporaryDirectory(prefix="moesim-import-") as folder:
        work = pathlib.Path(folder)
        gating = {"type": "topical", "requests": 4, "prompt_rows": 6, "decode_rows": 5}
        made = run("trace", "generate", "--model", model_file, "--gating", json.dumps(gating), "-o", work / "native")
        if made.returncode != 0:
            sys.exit(f"no trace: {made.stderr}")
        trace = Trace(work / "native")
        native, tags = work / "native/requests.jsonl", work / "tags.jsonl"
        tags.write_text("".join(json.dumps({"workload": request["workload"]}) + "\n" for request in trace.requests))
        vllm(work, trace, tags)
        npz(work, trace, tags)
        jsonl(work, trace, native)
        sglang(work, trace, tags)
        trtllm(work, trace, native)
        hf(work, trace, native)
        counts(work)
        rows_and_layers(work)
        hostile(work, trace)
    print(f"{failures} failures")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
