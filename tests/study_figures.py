#!/usr/bin/env python3
"""What README, RESULTS.md and tools/docs say of studies, from what the studies write. study_figures.py FOLDER writes
tools/lab/study/studies.json; the folder holds, for NAME in recorded, presets and prefill, what this wrote:

    moesim-lab study regimes configs/study_NAME.json -o out/NAME.sqlite --csv out/NAME.csv > out/NAME.txt
"""
import collections, csv, json, pathlib, re, sys

MEASURED, VLLM = "measured kernels", "gather, reduce-scatter"
SMALL = 4  # tokens per expert


def rows_of(folder, study):
    for row in csv.DictReader(open(folder / f"{study}.csv")):
        if row["constants"] == MEASURED and row["exchange"] in (VLLM, "") and row["fits"] == "1":
            yield row


def changes(folder, study):
    """Percent of no replication behind the same exchange, deciding free: by (case, x), then by (policy, ratio)."""
    steps = collections.defaultdict(dict)
    for row in rows_of(folder, study):
        ms = float(row["free_ms"] or row["step_ms"])
        steps[row["case"], float(row["x"])][row["policy"], float(row["replication"])] = ms
    return {cell: {key: 100 * (ms / policies["none", 1.0] - 1) for key, ms in policies.items()} for cell, policies in steps.items()}


def best(cell, policy):
    return min(change for (name, _), change in cell.items() if name == policy)


def verdicts(folder, study):
    text = (folder / f"{study}.txt").read_text().split("verdicts,")[1].split("\n\n")[0].splitlines()[2:]
    for line in text:
        case, x, families, measured, verdict = re.split(r"  +", line.strip())
        yield case, float(x), [float(n) for n in re.findall(r"[+-][\d.]+", families + measured)], verdict


def break_even(folder, study, case):
    """us a layer at the smallest x, by (rival, policy)."""
    text = (folder / f"{study}.txt").read_text().split(f"{case}; {MEASURED}\n")[1].split("break-even")[1].splitlines()
    policies = re.split(r"  +", text[1].strip())[3:]
    found = {}
    for line in text[2:4]:
        cells = re.split(r"  +", line.strip())
        for policy, cell in zip(policies, cells[3:]):
            found[f"{policy} against {cells[2]}"] = float(cell.split()[0])
    return found


def figures(folder):
    recorded, prefill = changes(folder, "recorded"), changes(folder, "prefill")
    even = [best(cell, "even") for cell in recorded.values()]
    worst = [change for cell in recorded.values() for (name, _), change in cell.items() if name == "even"]
    faster = lambda policy: sum(best(cell, policy) < 0 for cell in recorded.values())
    said = list(verdicts(folder, "recorded"))
    small = [row for row in said if row[1] <= SMALL]
    cut = [row for row in small if row[3] == "ep"]
    savings = [-n for row in cut for n in row[2]]
    packed = {x: best(cell, "eplb 0") for (_, x), cell in prefill.items()}
    copies = [change - packed[x] for (_, x), cell in prefill.items() for (name, _), change in cell.items() if name == "eplb"]
    cuts = [best(cell, "ep 4") for cell in prefill.values()]
    v3 = next(cell for (case, x), cell in changes(folder, "presets").items() if case == "DeepSeek-V3" and x == 1)
    number = lambda n: round(n, 1) + 0.0
    return {
        "recorded": {
            "cells": len(recorded), "even longer": sum(n > 0 for n in even), "even least": number(min(even)), "even most": number(max(even)),
            "even most at any ratio": number(max(worst)),
            "metro faster": faster("metro"), "fewest faster": faster("metro fewest"), "exact faster": faster("exact"),
            "small cells": len(small), "small cells cut": len(cut), "small cells open": sum(row[3] == "open" for row in small),
            "cut saves least": number(min(savings)), "cut saves most": number(max(savings)),
            "open": sum(row[3] == "open" for row in said),
        },
        "presets": {
            "DeepSeek-V3, x 1": {name: number(best(v3, name)) for name in ("even", "metro", "metro fewest", "exact", "hybrid")},
            "break-even, DeepSeek-V3, x 1": break_even(folder, "presets", "DeepSeek-V3"),
            "cells": len(list(verdicts(folder, "presets"))), "open": sum(row[3] == "open" for row in verdicts(folder, "presets")),
        },
        "prefill": {
            "packing saves least": number(-max(packed.values())), "packing saves most": number(-min(packed.values())),
            "copies change least": number(min(copies)), "copies change most": number(max(copies)),
            "cut costs least": number(min(cuts)), "cut costs most": number(max(cuts)),
        },
    }


if __name__ == "__main__":
    root = pathlib.Path(__file__).parents[1]
    text = json.dumps(figures(pathlib.Path(sys.argv[1])), indent=1) + "\n"
    (root / "tools/lab/study/studies.json").write_text(text)
