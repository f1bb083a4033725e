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
        self.moesim, self.folder = moesim, pathlib.Path(folder)

    def explain(self, model, gpu, engine, gpus, precision=None):
        """The step, or the message."""
        tp = min(gpus, 8)
        config = {
            "cluster": {"name": "n", "source": "this test", "gpu": str(ROOT / f"hardware/gpus/{gpu}.json"), "gpus_per_node": gpus,
                        "nodes": 1, "scale_up_domain": gpus, "network": {"bandwidth": "50 GB/s", "latency": "5 us"}},
            "model": str(ROOT / f"models/zoo/{model}.json"), "parallel": {"dp": gpus // tp, "tp": tp}, "engine": {"name": engine},
            "workload": {"arrivals": {"type": "closed_loop", "concurrency_per_rank": 1}, "requests": 8,
                         "gating": {"type": "uniform", "requests": 32, "prompt_rows": 1, "decode_rows": 8},
                         "lengths": {"type": "fixed", "prompt": 64, "output": 64}}, "seed": 1}
        zoo = json.loads((ROOT / f"models/zoo/{model}.json").read_text())
        if not zoo.get("experts"):
            del config["workload"]["gating"]
        if precision:
            config["precision"] = precision
        file = self.folder / "config.json"
        file.write_text(json.dumps(config))
        done = subprocess.run([self.moesim, "explain", file, "--sequences", str(max(1, 16 * tp // gpus)), "--samples", "1", "--json"],
                              capture_output=True, text=True)
        return json.loads(done.stdout) if done.returncode == 0 else done.stderr.strip()

    def resolved_precision(self, model, gpu, engine, gpus):
        """What the report prints."""
        done = subprocess.run([self.moesim, "check", self.folder / "config.json", "--json"], capture_output=True, text=True)
        return json.loads(done.stdout)["precision"] if done.returncode == 0 else None


if __name__ == "__main__":
    sys.exit("not yet")
