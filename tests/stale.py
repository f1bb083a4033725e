#!/usr/bin/env python3
"""Is a point run again once any file has changed that its run reads?

  tests/stale.py MOESIM          (exit 77: no strace)

strace lists the files that a sweep of one point opens in a copy of the data (hardware, models, a checkpoint, a routing trace, a
trace of requests, an anchor). Each is changed in turn, by a space or a comment at its end: the store must then not
take the point as done. What is only read to print the trust line is no part of a report and is left out, as are zoo files of other
models, which are read for their names."""
import gzip, json, pathlib, re, shutil, sqlite3, subprocess, sys, tempfile

root = pathlib.Path(__file__).resolve().parents[1]
if not shutil.which("strace"):
    print("strace is missing")
    sys.exit(77)
moesim = str(pathlib.Path(sys.argv[1]).resolve())
PRINTED = {"accuracy.json"}  # the trust line


def cases(work):
    """Experiments by name; files that they name are written to `work`."""
    tiny = json.loads((root / "tests/tiny.json").read_text()) | {"cluster": "h100x8", "model": "olmoe_1b_7b"}
    with_tables = tiny | {"engine": {"name": "vllm"}}
    checkpoint = work / "checkpoint"
    checkpoint.mkdir()
    (checkpoint / "config.json").write_text(json.dumps({
        "architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "hidden_size": 512, "num_hidden_layers": 2,
        "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 64, "intermediate_size": 1024, "moe_intermediate_size": 256,
        "num_experts": 16, "num_experts_per_tok": 2, "vocab_size": 1024, "torch_dtype": "bfloat16", "max_position_embeddings": 4096,
        "norm_topk_prob": True, "decoder_sparse_step": 1, "mlp_only_layers": [], "tie_word_embeddings": False}))
    (checkpoint / "hf_quant_config.json").write_text(json.dumps({
        "producer": {"name": "modelopt"}, "quantization": {"quant_algo": "FP8", "kv_cache_quant_algo": "FP8", "exclude_modules": ["lm_head"]}}))
    quantised = {key: value for key, value in tiny.items() if key != "precision"} | {"model": "checkpoint"}
    (work / "turns.jsonl").write_text("".join(json.dumps({
        "timestamp": s, "input_length": 20, "output_length": 4, "hash_ids": [s]}) + "\n" for s in range(4)))
    recorded = json.loads(json.dumps(tiny)) | {"model": "gpt_oss_20b"}
    recorded["workload"]["gating"] = {"type": "recorded", "trace": "data/traces/samples/small"}
    anchored = json.loads(json.dumps(tiny)) | {"anchor": "anchor.json"}
    (work / "anchor.json").write_text(json.dumps({"deployment": "x", "tpot": {"runs": 1, "factor": 1.1, "leave_one_out": 0,
        "center": {"concurrency": 1, "prompt": 1, "output": 1}}}))
    replayed = json.loads(json.dumps(tiny))
    replayed["workload"] |= {"arrivals": {"type": "poisson", "rate": "9 /s"}, "lengths": {"type": "trace", "file": "turns.jsonl"}}
    return {"tables": with_tables, "checkpoint": quantised, "anchor": anchored, "a trace of requests": replayed,
            "cluster and model": tiny, "recorded": recorded}


def sweep(work, trace=None):
    command = [moesim, "sweep", str(work / "sweep.json"), "-o", str(work / "store.sqlite")]
    if trace:
        command = ["strace", "-f", "-e", "trace=open,openat", "-o", str(trace), *command]
    return subprocess.run(command, capture_output=True, text=True, env={"MOESIM_DATA": str(work / "data"), "PATH": "/usr/bin:/bin"})


def opened(trace, work):
    own = {work / name for name in ("sweep.json", "base.json")}
    found = set()
    for line in trace.read_text(errors="replace").splitlines():
        match = re.search(r'open(?:at)?\([^"]*"([^"]+)".*= \d+$', line)
        path = pathlib.Path(match.group(1)).resolve() if match else None
        if path and path.is_relative_to(work) and path.is_file() and path not in own and "store.sqlite" not in path.name:
            found.add(path)
    return sorted(found)


def hashes(work):
    with sqlite3.connect(work / "store.sqlite") as store:
        return store.execute("SELECT config_hash FROM points").fetchall()


def change(file):
    before = file.read_bytes()
    if file.suffix == ".gz":
        file.write_bytes(before + gzip.compress(b""))
    elif file.suffix in (".npy", ".npz"):
        file.write_bytes(before[:-1] + bytes([before[-1] ^ 1]))
    else:
        file.write_bytes(before + b"\n")
    return before


stale = tried = 0
with tempfile.TemporaryDirectory() as folder:
    work = pathlib.Path(folder).resolve()
    for part in ("hardware", "models", "traces/samples"):
        shutil.copytree(root / part, work / "data" / part, ignore=shutil.ignore_patterns("*.cpp", "*.hpp"))
    for name, config in cases(work).items():
        (work / "base.json").write_text(json.dumps(config))
        (work / "sweep.json").write_text(json.dumps({"base": "base.json", "axes": {"/workload/requests": [4]}}))
        (work / "store.sqlite").unlink(missing_ok=True)
        done = sweep(work, work / "strace")
        if done.returncode != 0:
            print(f"FAILED: {name} does not run: {done.stderr.strip()[-300:]}")
            stale += 1
            continue
        files = [file for file in opened(work / "strace", work)
                 if file.name not in PRINTED and (file.parent.name != "zoo" or file.stem == config["model"])]
        print(f"{name}: {len(files)} files")
        kept = (work / "store.sqlite").read_bytes()
        for file in files:
            before, tried = change(file), tried + 1
            done = sweep(work)
            if done.returncode == 0 and len(hashes(work)) == 1:
                print(f"FAILED: {name}: a change of {file.relative_to(work)} leaves the point as it was")
                stale += 1
            file.write_bytes(before)
            (work / "store.sqlite").write_bytes(kept)
print(f"{tried} changed files, {stale} wrong")
sys.exit(1 if stale or not tried else 0)
