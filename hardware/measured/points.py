#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes what measure.py measured of GEMMs and experts as points for `moesim-lab validate --points`.

    python3 hardware/measured/points.py hardware/measured/h200.csv > h200_points.csv
"""
import csv
import sys

TOP_K = {"deepseek_v3": 8, "gpt_oss_20b": 4, "deepseek_v2_lite": 6, "qwen3_30b": 8}
COLUMNS = ["id", "category", "gpu", "n_gpu", "model", "op", "precision", "tp", "ep", "tokens", "distribution", "active_experts_rank", "metric", "value", "use"]


def points(path):
    lines = open(path).read().splitlines()
    gpu = lines[0].removeprefix("# NVIDIA ").split(",")[0].split()[0]
    for i, row in enumerate(csv.DictReader(lines[1:])):
        shape = dict(pair.split("=") for pair in row["shape"].split())
        point = {"id": f"own-{gpu}-{row['what']}-{i}", "gpu": gpu, "n_gpu": 1, "precision": shape.get("precision"), "metric": "kernel_time", "value": row["us"],
                 "use": "holdout"}
        if row["what"] == "gemm":
            yield {**point, "category": "gemm", "op": f"GEMM M={shape['m']} N={shape['n']} K={shape['k']}", "tokens": shape["m"]}
        # A rank of EP 8 of an imagined model with 8 times these slots: 8 selections of each token, so a row for each token.
        if row["what"] in ("experts", "fused"):
            yield {**point, "category": "moe_kernel", "model": shape["model"], "ep": 8, "tokens": shape["rows"], "distribution": "forced",
                   "active_experts_rank": shape["active"],
                   "op": f"experts hidden={shape['hidden']} width={shape['width']} experts={8 * int(shape['slots'])} top_k=8"}
        # The same, experts cut over some of the 8 GPUs: fewer ranks hold more experts, each a slice.
        if row["what"] in ("slices", "fused_slices"):
            cut, top_k = int(shape["cut"]), TOP_K[shape["model"]]
            ranks = 8 // cut
            yield {**point, "category": "moe_kernel", "model": shape["model"], "tp": cut, "ep": ranks, "tokens": int(shape["rows"]) * ranks / top_k,
                   "distribution": "forced", "active_experts_rank": shape["active"],
                   "op": f"experts hidden={shape['hidden']} width={cut * int(shape['width'])} experts={ranks * int(shape['slots'])} top_k={top_k}"}


writer = csv.DictWriter(sys.stdout, COLUMNS, restval="", lineterminator="\n")
writer.writeheader()
writer.writerows(points(sys.argv[1]))
