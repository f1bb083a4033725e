#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Laws of defaults: every model of the zoo on every GPU by default settings of every engine, a step of 16 sequences.

    defaults.py MOESIM [--all] [--table FILE]

- A GPU whose every line of the data sheet is at least another's is not slower, by more than the noise of tables.
- Experts use between a quarter and 95 % of the HBM's bandwidth.
- Leaving the precision out equals writing the precision that the report prints.

What breaks one of them is listed in defaults.csv with the reason; a line that nothing needs is an error. Without --all one
engine is asked, and the GPUs with tables of their own."""
import argparse
import csv
import json
import pathlib
import re
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
GPUS = {"measured": ["a100_80g", "h100", "h200", "b200", "gb200", "b300"],
        "all": ["a100_80g", "l40s", "h20", "h100", "h200", "rtx_pro_6000", "b200", "gb200", "b300", "gb300"]}
NOISE = 1.10  # two GPUs' tables are measured and interpolated apart
LEAST, MOST = 0.25, 0.95


def rates(gpu):
    """Every line of the data sheet that says how fast or how large something is."""
    sheet = json.loads((ROOT / f"hardware/gpus/{gpu}.json").read_text())
    unit = {"GB/s": 1e9, "TB/s": 1e12, "TFLOP/s": 1e12, "GB": 1e9, "GiB": 2**30, "MB": 1e6, "MiB": 2**20, "KiB": 1024}
    number = lambda text: float(text.split()[0]) * unit[text.split()[1]]
    lines = {key: number(sheet[key]) for key in ("hbm_bandwidth", "l2_bandwidth", "scale_up_bandwidth", "l2_capacity")}
    lines |= {precision: number(peak) for precision, peak in sheet["dense_peak"].items()}
    return lines | {"sms": sheet["sms"]}


def is_faster(one, other):
    """Whether `one` is at least `other` on every line that both have, and more on one."""
    a, b = rates(one), rates(other)
    return all(a.get(key, 0) >= value for key, value in b.items()) and a != b


class Runs:
    def __init__(self, moesim, folder):
        self.moesim, self.file = moesim, pathlib.Path(folder) / "config.json"

    def write(self, model, gpu, engine, gpus, precision=None):
        tp = min(gpus, 8)
        workload = {"arrivals": {"type": "closed_loop", "concurrency_per_rank": 1}, "requests": 8,
                    "gating": {"type": "uniform", "requests": 32, "prompt_rows": 1, "decode_rows": 8},
                    "lengths": {"type": "fixed", "prompt": 64, "output": 64}}
        config = {"cluster": {"name": "n", "source": "this test", "gpu": str(ROOT / f"hardware/gpus/{gpu}.json"), "gpus_per_node": gpus,
                              "nodes": 1, "scale_up_domain": gpus,
                              "network": {"bandwidth": "50 GB/s", "bandwidth_share": 0.9, "latency": "5 us", "latency_per_doubling": "1 us",
                                          "source": "this test"}},
                  "model": str(ROOT / f"models/zoo/{model}.json"), "parallel": {"dp": gpus // tp, "tp": tp}, "engine": {"name": engine},
                  "workload": workload, "seed": 1}
        if precision:
            config["precision"] = precision
        self.file.write_text(json.dumps(config))

    def explain(self, *case):
        """The step, or the message."""
        self.write(*case)
        done = subprocess.run([self.moesim, "explain", self.file, "--sequences", "16", "--context", "1024", "--samples", "1", "--json"],
                              capture_output=True, text=True)
        return json.loads(done.stdout) if done.returncode == 0 else done.stderr.strip()

    def printed_precision(self, *case):
        """As `check` says it."""
        self.write(*case)
        done = subprocess.run([self.moesim, "check", self.file], capture_output=True, text=True)
        said = re.search(r"^precision: (.*?) \(", done.stdout, re.M)
        names = {"experts": "experts", "attention": "attention", "other weights": "attention", "weights": "attention", "KV cache": "kv_cache",
                 "activations": "activations", "dense FFNs": "ffn", "shared experts and dense FFNs": "ffn"}
        plan = {}
        for part in said.group(1).split(", "):
            words, precision = part.rsplit(" ", 1)
            plan[names.get(words, words)] = precision
        if "experts" not in plan:
            plan["experts"] = plan["attention"]
        return plan


def expert_share(step, gpu):
    """Of the HBM's bandwidth, what experts use while they run; nothing of a dense model."""
    for op in step["operations"]:
        if op["operation"] == "expert_ffn":
            return op["hbm_share"]
    return None


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("moesim")
    parser.add_argument("--all", action="store_true", help="all engines and GPUs")
    parser.add_argument("--table", help="CSV to write")
    options = parser.parse_args()
    engines = ["vllm", "sglang", "trtllm"] if options.all else ["vllm"]
    gpus = GPUS["all" if options.all else "measured"]
    with open(HERE / "defaults.csv", newline="") as text:
        listed = list(csv.DictReader(text))
    lines, broken, skipped = [], [], []

    def note(law, model, gpu, engine, what):
        for row in listed:
            if row["law"] == law and row["model"] in ("*", model) and row["gpu"] in ("*", gpu) and row["engine"] in ("*", engine):
                row["used"] = True
                return
        broken.append(f"{law}: {model} on {gpu}, {engine}: {what}")

    with tempfile.TemporaryDirectory() as folder:
        runs = Runs(options.moesim, folder)
        for model in sorted(f.stem for f in (ROOT / "models/zoo").glob("*.json")):
            for engine in engines:
                ms = {}
                # The fewest GPUs of an A100's memory that hold it.
                for count in (1, 2, 4, 8, 16, 32):
                    first = runs.explain(model, gpus[0], engine, count)
                    if isinstance(first, dict) or "does not fit" not in first and "divide" not in first:
                        break
                if not isinstance(first, dict):
                    skipped.append(f"{model}, {engine}: {first.splitlines()[0][-150:]}")
                    continue
                for gpu in gpus:
                    step = runs.explain(model, gpu, engine, count)
                    if not isinstance(step, dict):
                        skipped.append(f"{model} on {gpu}, {engine}: {step.splitlines()[0][-150:]}")
                        continue
                    ms[gpu] = step["total_ms"]
                    share = expert_share(step, gpu)
                    lines.append((model, gpu, engine, count, f"{ms[gpu]:.3f}", "" if share is None else f"{share:.3f}"))
                    if share is not None and not LEAST <= share <= MOST:
                        note("bandwidth", model, gpu, engine, f"experts use {share:.2f} of the HBM's bandwidth")
                    if gpu in ("h100", "b200"):
                        said = runs.printed_precision(model, gpu, engine, count)
                        written = runs.explain(model, gpu, engine, count, said)
                        if not isinstance(written, dict) or abs(written["total_ms"] / ms[gpu] - 1) > 1e-9:
                            note("left out", model, gpu, engine, f"{ms[gpu]:.3f} ms; with {json.dumps(said)} written "
                                 f"{written['total_ms'] if isinstance(written, dict) else written[-150:]}")
                for one in ms:
                    for other in ms:
                        if is_faster(one, other) and ms[one] > NOISE * ms[other]:
                            note("faster", model, one, engine, f"{ms[one]:.2f} ms; {ms[other]:.2f} on {other}, whose data sheet is slower")
    if options.table:
        with open(options.table, "w", newline="") as text:
            csv.writer(text).writerows([("model", "gpu", "engine", "gpus", "step_ms", "expert_bandwidth_share"), *lines])
    for line in skipped:
        print("skipped:", line)
    print(f"{len(lines)} steps of 16 sequences by default settings; {sum('used' in row for row in listed)} exceptions in defaults.csv")
    broken += [f"defaults.csv: nothing needs the line {row['law']}, {row['model']}, {row['gpu']}, {row['engine']}" for row in listed
               if "used" not in row and options.all]
    for line in broken:
        print(line)
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
