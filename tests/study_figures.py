#!/usr/bin/env python3
"""What README, RESULTS.md and tools/docs say of studies, from what the studies write. study_figures.py FOLDER writes
tools/lab/study/studies.json; the folder holds, for NAME in recorded, presets and prefill, what this wrote:

    moesim-lab study regimes configs/study_NAME.json -o out/NAME.sqlite --csv out/NAME.csv > out/NAME.txt
"""
import collections, csv, json, pathlib, re, sys

ENGINE, FAMILIES, GATHER, ANY = "vLLM's kernels", "family constants", "gather, reduce-scatter", None
SMALL = 4  # tokens per expert
SURE = .95
CHARGES = {"free": "free_ms", "as published": "published_ms", "our kernels": "fast_ms"}


def changes(folder, study, constants=ENGINE, exchange=GATHER, charge="free_ms"):
    """Percent of no replication: by (case, x), then by policy, each at its best ratio and at its best exchange if that is ANY."""
    steps = collections.defaultdict(dict)
    for row in csv.DictReader(open(folder / f"{study}.csv")):
        if row["constants"] == constants and row["exchange"] in (exchange or row["exchange"], "") and row["fits"] == "1":
            cell, ms = steps[row["case"], float(row["x"])], float(row[charge] or row["step_ms"])
            cell[row["policy"]] = min(ms, cell.get(row["policy"], ms))
    return {place: {policy: 100 * (ms / cell["none"] - 1) for policy, ms in cell.items()} for place, cell in steps.items()}


def cut(cell, policies=("ep 1", "ep 2", "ep 4")):
    return min(cell[policy] for policy in policies)


def rest(cell):
    return min(change for policy, change in cell.items() if not policy.startswith("ep "))


def chances(folder, study):
    """The family that is the fastest in every view, and P of that where it is least: by (case, x)."""
    text = (folder / f"{study}.txt").read_text().split("the fastest, and P:\n")[1].split("\n\n")[0].splitlines()[2:]
    for line in text:
        case, x, *_, family, p = re.split(r"  +", line.strip())
        yield (case, float(x)), family, float(p)


def break_even(folder, study, case):
    """us a layer at the smallest x, by (rival, policy)."""
    text = (folder / f"{study}.txt").read_text().split(f"{case}; {ENGINE}\n")[1].split("break-even")[1].splitlines()
    policies = re.split(r"  +", text[1].strip())[3:]
    found = {}
    for line in text[2:4]:
        cells = re.split(r"  +", line.strip())
        for policy, cell in zip(policies, cells[3:]):
            found[f"{policy} against {cells[2]}"] = float(cell.split()[0])
    return found


def number(n):
    return round(n, 1) + 0.0


def spread(changes):
    return {"least": number(min(changes)), "most": number(max(changes))}


def recorded(folder):
    views = [changes(folder, "recorded", constants, exchange) for constants in (ENGINE, FAMILIES) for exchange in (GATHER, ANY)]
    small = [place for place in views[0] if place[1] <= SMALL]
    fastest = lambda policies: sum(all(cut(view[place], policies) < rest(view[place]) for view in views) for place in small)
    saved = lambda constants, model: spread([-cut(changes(folder, "recorded", constants, ANY)[place]) for place in small if place[0].startswith(model)])
    faster = lambda view, policy: sum(cell[policy] < 0 for cell in view.values())
    chance = list(chances(folder, "recorded"))
    return {
        "cells": len(views[0]),
        "even longer": sum(cell["even"] > 0 for cell in views[0].values()), "even": spread([cell["even"] for cell in views[0].values()]),
        "faster behind the gather": {policy: faster(views[0], policy) for policy in ("metro", "metro fewest", "exact")},
        "faster behind the best exchange": {policy: faster(views[1], policy) for policy in ("metro", "metro fewest", "exact")},
        "faster charged": {policy: faster(changes(folder, "recorded", ENGINE, GATHER, "published_ms"), policy) for policy in ("metro", "metro fewest", "exact")},
        "small cells": len(small), "cut fastest": fastest(("ep 1", "ep 2", "ep 4")), "ep 1 fastest": fastest(("ep 1",)),
        "cut sure": sum(family == "ep" and p >= SURE for (_, x), family, p in chance if x <= SMALL),
        "cut likelier than not": sum(family == "ep" and p > .5 for (_, x), family, p in chance if x <= SMALL),
        "cut saves": {f"{model}, {constants}": saved(constants, model)
                      for model in ("gpt-oss", "DeepSeek") for constants in (ENGINE, FAMILIES)},
        "nobody sure": sum(p < SURE for _, _, p in chance),
    }


def presets(folder):
    policies = ("even", "metro", "metro fewest", "exact", "hybrid", "ep 4", "ep 1")
    v3 = lambda constants, charge: changes(folder, "presets", constants, GATHER, charge)["DeepSeek-V3", 1.0]
    return {
        "DeepSeek-V3, x 1": {f"{constants}, {name}": {policy: number(v3(constants, charge)[policy]) for policy in policies}
                             for constants in (ENGINE, FAMILIES) for name, charge in CHARGES.items()},
        "break-even, DeepSeek-V3, x 1": break_even(folder, "presets", "DeepSeek-V3"),
    }


def prefill(folder):
    cells = changes(folder, "prefill")
    groups = sorted({case for case, _ in cells})
    of = lambda group, figure: spread([figure(cell) for (case, _), cell in cells.items() if case == group])
    return {re.search(r"\d+ H200", group).group(): {
        "packing": of(group, lambda cell: cell["eplb 0"]), "with copies": of(group, lambda cell: cell["eplb"]),
        "copies change": of(group, lambda cell: cell["eplb"] - cell["eplb 0"]), "cut": of(group, lambda cell: cell["ep 4"]),
    } for group in groups}


if __name__ == "__main__":
    root, folder = pathlib.Path(__file__).parents[1], pathlib.Path(sys.argv[1])
    figures = {"recorded": recorded(folder), "presets": presets(folder), "prefill": prefill(folder)}
    (root / "tools/lab/study/studies.json").write_text(json.dumps(figures, indent=1) + "\n")
