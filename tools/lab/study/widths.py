#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What cutting some experts gains in decode and costs in prefill, from the rows of study_widths.json: widths.py CSV.

Per case and set of constants: steps in percent of whole experts behind the better of two exchanges, by the tokens of a GPU. Then
the most that a layout with some experts cut saves against the better of the pure ones. Both phases are weighed at the ratio of
outputs to prompts that suits the layout best: 0 where a pure layout is at least as good at every ratio.
"""
import argparse, collections, csv

DECODE, PREFILL, WHOLE, ALL = [8, 16, 32, 64], [2048, 8192], "none", "ep 1"

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("csv")
rows = list(csv.DictReader(open(parser.parse_args().csv)))

steps = collections.defaultdict(lambda: collections.defaultdict(dict))  # [case, constants][kind, tokens of a GPU][layout]
for row in rows:
    gpus = int(row["case"].split(", ")[-1].split()[0])
    cell = steps[row["case"], row["constants"]][row["step"], int(row["batch"]) // gpus]
    layout = WHOLE if row["policy"].startswith(WHOLE) else row["policy"]
    if row["policy"] == WHOLE:
        cell["gathered"] = float(row["step_ms"])
    cell[layout] = min(float(row["step_ms"]), cell.get(layout, float("inf")))


def percent(cell, layout):
    return 100 * (cell[layout] / cell[WHOLE] - 1) if layout in cell else None


def best_saving(prefill, decode, layout):
    """Most of 1 - T(layout) / min(T(whole), T(cut)) over r >= 0, with T = prefill + r decode; linear parts meet where both are equal."""
    times = {l: (prefill[l], decode[l]) for l in (WHOLE, layout, ALL)}
    slope = times[WHOLE][1] - times[ALL][1]
    ratios = [0, 1e9]
    if slope != 0 and (times[ALL][0] - times[WHOLE][0]) / slope > 0:
        ratios.append((times[ALL][0] - times[WHOLE][0]) / slope)
    cost = lambda l, r: times[l][0] + r * times[l][1]
    return max(0, 100 * max(1 - cost(layout, r) / min(cost(WHOLE, r), cost(ALL, r)) for r in ratios))


def text(value):
    return "-" if value is None else f"{value:+.1f}"


for (case, constants), cells in steps.items():
    layouts = [l for l in next(iter(cells.values())) if l.startswith("cut")]
    # A share that leaves no cut is the whole experts' layout.
    layouts = [l for l in layouts if any(cell[l] != cell["gathered"] for cell in cells.values())]
    if not layouts:
        continue
    print(f"\n{case}; {constants}\n\n| | " + " | ".join(f"{kind} {tokens}" for kind, tokens in sorted(cells)) + " | saves |")
    print("|---|" + "---|" * (len(cells) + 1))
    for layout in layouts + [ALL]:
        changes = [percent(cells[place], layout) for place in sorted(cells)]
        saving = "" if layout == ALL else f"{max(best_saving(cells['prefill', p], cells['decode', d], layout) for p in PREFILL for d in DECODE):.1f} %"
        print(f"| {layout} | " + " | ".join(map(text, changes)) + f" | {saving} |")
    for layout in layouts:
        better = sum(cells["decode", d][layout] < .99 * cells["decode", d][WHOLE] for d in DECODE)
        level = all(cells["decode", d][layout] < 1.01 * cells["decode", d][WHOLE] for d in DECODE)
        beats = all(cells["prefill", p][layout] < .99 * cells["prefill", p][ALL] for p in PREFILL)
        print(f"{layout}: decode shorter than whole in {better} of {len(DECODE)}{', level in the rest' if level else ''}; "
              f"prefill {'shorter than ep 1 in both' if beats else 'not shorter than ep 1'}: "
              f"{'yes' if better >= 3 and level and beats else 'no'}")
