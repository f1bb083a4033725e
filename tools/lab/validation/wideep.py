#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What EPLB gains in expert kernels: TensorRT-LLM's wide-EP tables with and without EPLB, and moesim's prices of the same.

    tools/lab/validation/wideep.py build/release/tools/moesim ../shared/data/silicon/GB200/trtllm-1.3.0rc10/wideep_experts.csv

Pairs are rows of equal tokens, ranks, layer and power law, of layers with 256 experts. A gain is the time without EPLB over the time
with EPLB.
"""
import collections
import csv
import pathlib
import statistics
import subprocess
import sys
import tempfile

COLUMNS = ["id", "category", "gpu", "n_gpu", "op", "precision", "tp", "ep", "tokens", "distribution", "metric", "value", "use", "source"]
SHAPE = "hidden width experts top_k".split()


def points(path):
    engine, gpu = path.parent.name, path.parent.parent.name
    for i, row in enumerate(row for row in csv.DictReader(open(path)) if row["experts"] == "256"):
        shape = " ".join(f"{name}={row[name]}" for name in SHAPE + ["slots"])
        yield row, {"id": str(i), "category": "moe_kernel", "gpu": gpu, "n_gpu": row["ep"], "op": f"experts {shape} kernel={row['moe_kernel']}", "precision": row["precision"],
                    "tp": row["tp"], "ep": row["ep"], "tokens": row["tokens"], "distribution": row["distribution"], "metric": "kernel_time",
                    "value": row["us"], "use": "holdout", "source": engine}


def predicted(moesim, rows):
    with tempfile.TemporaryDirectory() as folder:
        given, found = f"{folder}/points.csv", f"{folder}/predicted.csv"
        with open(given, "w", newline="") as file:
            writer = csv.DictWriter(file, COLUMNS, restval="", lineterminator="\n")
            writer.writeheader()
            writer.writerows(point for _, point in rows)
        subprocess.run([moesim + "-lab", "validate", "--points", given, "--csv", found], check=True, stdout=subprocess.DEVNULL)
        return {row["id"]: float(row["predicted"]) for row in csv.DictReader(open(found)) if row["predicted"]}


def gains(moesim, path):
    """(ranks, slots, experts, tokens), measured gain, ours; of each pair."""
    rows = list(points(path))
    ours = predicted(moesim, rows)
    times = {}
    for row, point in rows:
        law = row["distribution"].removesuffix("_eplb")
        shape = tuple(row[name] for name in SHAPE)
        times[shape, law, row["ep"], row["tokens"], row["slots"], row["op"]] = float(row["us"]), ours.get(point["id"])
    for (shape, law, ranks, tokens, slots, op), with_eplb in times.items():
        without = times.get((shape, law, ranks, tokens, shape[2], "wideep_moe"))
        if op == "wideep_moe_eplb" and without and with_eplb[1] and without[1]:
            yield (int(ranks), int(slots) - int(shape[2]), int(tokens)), without[0] / with_eplb[0], without[1] / with_eplb[1]


def table(pairs, name, of):
    groups = collections.defaultdict(list)
    for key, measured, ours in pairs:
        groups[of(key)].append((measured, ours))
    print(f"| {name} | pairs | measured | ours | same side of 1, of those over 5 % |\n|---|---|---|---|---|")
    for key in sorted(groups):
        all_of = groups[key]
        clear = [(m, o) for m, o in all_of if abs(m - 1) > 0.05]
        same = sum((m > 1) == (o > 1) for m, o in clear)
        print(f"| {key} | {len(all_of)} | {statistics.median(m for m, _ in all_of):.2f} | {statistics.median(o for _, o in all_of):.2f} | "
              f"{same} of {len(clear)} |")


def size_of(key):
    tokens = key[2]
    copies = f"{key[1]} copies" if key[1] else "packed"
    return copies + (", up to 128 tokens" if tokens <= 128 else ", up to 1,024" if tokens <= 1024 else ", more")


def main():
    moesim, path = sys.argv[1], pathlib.Path(sys.argv[2])
    pairs = list(gains(moesim, path))
    table([pair for pair in pairs if pair[0][1] == 0], "ranks, packed", lambda key: key[0])
    print()
    table([pair for pair in pairs if 4 <= pair[0][0] <= 32], "4 to 32 ranks", size_of)
    print()
    table(pairs, "", lambda key: "all")


main()
