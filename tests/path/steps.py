#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Whole decode steps of Qwen3-30B-A3B that we measured on one GPU (hardware/measured/whole_step.py) beside `moesim explain`.

    steps.py MOESIM

Tables of vLLM's kernels know nothing of these runs. What is compared: the time on the GPU, so without the host's, and the
experts in it. Every sequence holds `context` tokens, and each token takes 8 different experts of the first `pool`."""
import csv
import json
import pathlib
import statistics
import struct
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
LAYERS, EXPERTS = 48, 128
# How far medians may be off: the step on the GPU and its experts, where tokens take all experts alike and where they take
# few. Our kernels are not vLLM's, and where few are active the tables have few rows.
STEP, EXPERTS_TIME, FEW_STEP, FEW_EXPERTS_TIME = 0.08, 0.10, 0.20, 0.60


def save_counts(file, pool):
    """An .npy of [layers, experts]: the first `pool` experts alike often, the others never."""
    header = f"{{'descr': '<i8', 'fortran_order': False, 'shape': ({LAYERS}, {EXPERTS}), }}"
    header += " " * (63 - (10 + len(header)) % 64) + "\n"
    counts = [1000] * pool + [0] * (EXPERTS - pool)
    file.write_bytes(b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header.encode() +
                     struct.pack(f"<{LAYERS * EXPERTS}q", *counts * LAYERS))


def explained(moesim, folder, gpu, row):
    """Milliseconds on the GPU, those of the experts, and the mean number of active experts."""
    counts, config = folder / f"counts_{row['pool']}.npy", folder / "config.json"
    save_counts(counts, int(row["pool"]))
    sequences = int(row["sequences"])
    config.write_text(json.dumps({
        "cluster": str(ROOT / f"hardware/clusters/{gpu}x8.json"), "model": str(ROOT / "models/zoo/qwen3_30b_a3b.json"),
        "engine": {"name": "vllm"}, "parallel": {"dp": 1, "tp": 1, "ep": 1},
        "scheduling": {"type": "chunked_prefill", "max_num_batched_tokens": 8192, "max_num_seqs": 256},
        "workload": {"arrivals": {"type": "closed_loop", "concurrency_per_rank": sequences}, "requests": 1024,
                     "lengths": {"type": "fixed", "prompt": 256, "output": 192},
                     "gating": {"type": "counts", "file": str(counts), "requests": 512, "prompt_rows": 1, "decode_rows": 4}},
        "seed": 1}))
    result = subprocess.run([moesim, "explain", config, "--sequences", str(sequences), "--context", row["context"],
                             "--samples", "4", "--json"], capture_output=True, text=True)
    if result.returncode:
        sys.exit(f"moesim explain: {result.stderr}")
    report = json.loads(result.stdout)
    took = {operation["operation"]: 1e3 * operation["seconds"] for operation in report["operations"]}
    return report["total_ms"] - took["host_overhead"], took["expert_ffn"], report["experts"]["active_experts_mean"]


def main():
    moesim = pathlib.Path(sys.argv[1]).resolve()
    off = {}
    with tempfile.TemporaryDirectory() as folder:
        print(" gpu context sequences pool   active   (ours)   step ms   (ours)          experts   (ours)")
        for gpu in ("h100", "h200"):
            with open(ROOT / f"hardware/measured/{gpu}_steps.csv") as file:
                rows = list(csv.DictReader(line for line in file if not line.startswith("#")))
            for row in rows:
                step, experts, active = explained(moesim, pathlib.Path(folder), gpu, row)
                measured, measured_experts = float(row["ms"]), float(row["ms"]) - float(row["rest_ms"])
                few = "few" if int(row["pool"]) < EXPERTS else "all"
                off.setdefault((gpu, few), []).append((step / measured - 1, experts / measured_experts - 1))
                print(f"{gpu:>4} {row['context']:>7} {row['sequences']:>9} {row['pool']:>4} {float(row['active']):>8.1f} {active:>8.1f} "
                      f"{measured:>9.2f} {step:>8.2f} {100 * (step / measured - 1):>+5.0f} % "
                      f"{measured_experts:>9.2f} {experts:>8.2f} {100 * (experts / measured_experts - 1):>+5.0f} %")
    failed = False
    for (gpu, few), pairs in off.items():
        step, experts = (statistics.median(abs(error) for error in errors) for errors in zip(*pairs))
        limits = (STEP, EXPERTS_TIME) if few == "all" else (FEW_STEP, FEW_EXPERTS_TIME)
        failed |= step > limits[0] or experts > limits[1]
        print(f"{gpu}, {few} experts: median error {100 * step:.1f} % of the step (at most {100 * limits[0]:.0f}), "
              f"{100 * experts:.1f} % of the experts (at most {100 * limits[1]:.0f})")
    sys.exit(1 if failed else 0)


main()
