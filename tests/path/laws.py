# SPDX-License-Identifier: Apache-2.0
"""Monotony of prices: a step with more of anything takes no less time in any of its operations, but for the noise of rows,
and a layer whose queries see all keys is not cheaper than one with a window."""
import json
import pathlib

import shapes

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
Step = shapes.Step
# A time may fall so much below the greatest before it: rows that are neighbours on one axis do where another algorithm or
# tile takes over (NCCL's protocols, tiles of GEMMs, split keys). Steps, the sum of some ten operations, by a tenth.
NOISE = 0.25
OF_STEP = 0.10
LEAST = 3e-6      # seconds: below it a launch decides

BATCHES, CONTEXTS = (1, 2, 4, 8, 16, 32, 64, 128, 256), (512, 1024, 2048, 4096, 8192, 16384, 32768)
PROMPTS = (512, 1024, 2048, 3072, 4096, 6144, 8192)


def series():
    """[(what grows, steps of which each is more than the one before)]"""
    grid = [(f"batch at {c}", [Step(b, c, ()) for b in BATCHES]) for c in (1024, 8192)]
    grid += [(f"context of {b}", [Step(b, c, ()) for c in CONTEXTS]) for b in (1, 16, 128)]
    grid += [("prompt", [Step(0, 0, ((t, 0),)) for t in PROMPTS]),
             ("prefix", [Step(0, 0, ((1024, p),)) for p in (0, 1024, 4096, 16384)])]
    return grid


def times(explained):
    sums = {}
    for op in explained["operations"]:
        key = op["operation"], op["part"]
        sums[key] = sums.get(key, 0) + op["seconds"]
    return sums


def falls(name, grid, explained):
    broken, at = [], 0
    for what, steps in grid:
        greatest, total = {}, 0
        for step, result in zip(steps, explained[at:at + len(steps)]):
            for (operation, part), seconds in times(result).items():
                before = greatest.get((operation, part), 0)
                calls = max(1, sum(o["calls"] for o in result["operations"] if o["operation"] == operation))
                if before - seconds > NOISE * before and before - seconds > LEAST * calls:
                    broken.append(f"{name}: {operation} falls from {before * 1e6:.0f} to {seconds * 1e6:.0f} us as {what} grows: {step}")
                greatest[operation, part] = max(before, seconds)
            if result["total_ms"] < (1 - OF_STEP) * total:
                broken.append(f"{name}: the step falls from {total:.2f} to {result['total_ms']:.2f} ms as {what} grows: {step}")
            total = max(total, result["total_ms"])
        at += len(steps)
    return broken


def windowed(folder, window):
    """gpt-oss-120b with every layer windowed, or none."""
    model = json.loads((ROOT / "models/zoo/gpt_oss_120b.json").read_text())
    model["layers"] = [{"repeat": 36, "pattern": [{"ffn": "moe", "window": 128} if window else {"ffn": "moe"}]}]
    file = folder / f"windowed_{int(window)}.json"
    file.write_text(json.dumps(model))
    return file


def full_below_windowed(layout, explain, folder):
    steps = [Step(b, c, ()) for b in (1, 16, 128) for c in (256, 1024, 8192)] + [Step(0, 0, ((t, 0),)) for t in PROMPTS]
    full, near = (explain(dict(layout, file=windowed(folder, window)), steps) for window in (False, True))
    broken = []
    for step, a, b in zip(steps, full, near):
        for operation in ("attention_decode", "attention_prefill"):
            key = operation, "attention"
            # Rows of the two are rows of different runs.
            without, window = times(a).get(key, 0), times(b).get(key, 0)
            if without < (1 - OF_STEP) * window and window - without > LEAST * 36:
                broken.append(f"{layout['gpu']} {layout['engine']}: {operation} without a window takes {times(a)[key] * 1e6:.0f} us, with "
                              f"one {times(b)[key] * 1e6:.0f}: {step}")
    return broken
