#!/usr/bin/env python3
"""Does `replay` count activated experts of mixed widths as a reader of the recordings does?

    tests/cut_counts.py MOESIM [ROUTING]

Each recording gives rows that placements are fitted on and batches of single tokens of other requests. What is cut, how the
rest is packed, and how much the busiest GPU reads are worked out here, from what sim/placement/README.md says. Skips, visibly
and with exit 77, where the recordings (../shared/data/routing) are absent.
"""
import array, json, pathlib, random, subprocess, sys, tempfile

moesim = pathlib.Path(sys.argv[1]).resolve()
routing = pathlib.Path(sys.argv[2]) if len(sys.argv) > 2 else pathlib.Path(__file__).resolve().parents[2] / "shared/data/routing"
GPUS, SHARES, BATCHES, OF_EACH = 8, [0, .25, .5, .75, 1], [8, 16, 32], 4
failures = compared = 0


class Recording:
    def __init__(self, folder):
        self.meta = json.loads((folder / "meta.json").read_text())
        self.layers, self.k = len(self.meta["layer_ids"]), self.meta["experts_per_token"]
        data = (folder / "topk_ids.npy").read_bytes()
        start = 10 + int.from_bytes(data[8:10], "little")
        self.code = {"|u1": "B", "<u2": "H", "<i4": "i"}[eval(data[10:start].decode())["descr"]]
        self.ids = array.array(self.code, data[start:])
        lines = map(json.loads, (folder / "requests.jsonl").read_text().splitlines())
        self.requests = [line for line in lines if line["num_tokens"] > 0 and not line.get("has_repetition")]

    def row(self, number):
        size = self.layers * self.k
        return self.ids[number * size:(number + 1) * size]

    def of_layer(self, row, layer):
        return row[layer * self.k:(layer + 1) * self.k]


def placed(load, share):
    """The experts that are cut, and the whole ones of each GPU: heaviest first to the lightest GPU with room."""
    experts = len(load)
    room = int((1 - share) * experts / GPUS + .5)
    coldest = sorted(range(experts), key=lambda e: (load[e], e))
    cut, whole = coldest[:experts - room * GPUS], sorted(coldest[experts - room * GPUS:])
    gpus = [[] for _ in range(GPUS)]
    if room == 1:
        return set(cut), [[expert] for expert in whole]
    weight = [0] * GPUS
    for expert in sorted(whole, key=lambda e: (-load[e], e)):
        gpu = min((g for g in range(GPUS) if len(gpus[g]) < room), key=lambda g: (weight[g], g))
        gpus[gpu].append(expert)
        weight[gpu] += load[expert]
    return set(cut), gpus


def counted(recording, fit, batch, share):
    """Experts' worth of weights, and tokens, on the busiest GPU: means over layers."""
    active = tokens = 0
    for layer in range(recording.layers):
        load, chosen = [0] * recording.meta["num_experts"], [0] * recording.meta["num_experts"]
        for counts, rows in ((load, fit), (chosen, batch)):
            for row in rows:
                for expert in recording.of_layer(row, layer):
                    counts[expert] += 1
        cut, gpus = placed(load, share)
        active += max(sum(chosen[e] > 0 for e in gpu) for gpu in gpus) + sum(chosen[e] > 0 for e in cut) / GPUS
        tokens += max(sum(chosen[e] for e in gpu) for gpu in gpus) + sum(chosen[e] for e in cut) / GPUS
    return active / recording.layers, tokens / recording.layers


def written(folder, recording, fit, batch):
    rows = fit + batch
    head = f"{{'descr': '{'|u1' if recording.code == 'B' else '<u2' if recording.code == 'H' else '<i4'}', " \
           f"'fortran_order': False, 'shape': ({len(rows)}, {recording.layers}, {recording.k}), }}"
    head += " " * (-(10 + len(head) + 1) % 64) + "\n"
    data = b"".join(row.tobytes() for row in rows)
    folder.mkdir()
    (folder / "topk_ids.npy").write_bytes(b"\x93NUMPY\x01\x00" + len(head).to_bytes(2, "little") + head.encode() + data)
    (folder / "meta.json").write_text(json.dumps(recording.meta))
    tag = ["fit"] * len(fit) + ["score"] * len(batch)
    (folder / "requests.jsonl").write_text("".join(
        json.dumps({"row_start": i, "num_tokens": 1, "prompt_rows": 0, "workload": tag[i]}) + "\n" for i in range(len(rows))))


def replayed(folder, size):
    cuts = [f"cut_coldest:share={share}" for share in SHARES]
    command = [moesim, "replay", "--trace", folder, "--gpus", GPUS, "--placement", ",".join(["eplb"] + cuts), "--routing", "even",
               "--fit-workloads", "fit", "--batch", size, "--batches", 1, "--json"]
    done = subprocess.run([*map(str, command)], check=True, capture_output=True, text=True)
    return json.loads(done.stdout)["rows"]


names = [name for name in ("gpt-oss-20b", "deepseek-v2-lite") if (routing / name).is_dir()]
if not names:
    print(f"skipped: {routing} is absent")
    sys.exit(77)
with tempfile.TemporaryDirectory() as work:
    for name in names:
        recording, draw = Recording(routing / name), random.Random(name)
        rows_of = lambda request, most: range(request["row_start"], request["row_start"] + min(most, request["num_tokens"]))
        fit = [recording.row(i) for request in recording.requests[::2] for i in rows_of(request, 8)]
        for size in BATCHES:
            for i in range(OF_EACH):
                batch = [recording.row(draw.choice(rows_of(request, 1 << 30))) for request in draw.sample(recording.requests[1::2], size)]
                folder = pathlib.Path(work) / f"{name}-{size}-{i}"
                written(folder, recording, fit, batch)
                for row, share in zip(replayed(folder, size), [0] + SHARES):
                    mine = counted(recording, fit, batch, share)
                    theirs = row["max_activated_mean"], row["max_tokens_mean"]
                    compared += recording.layers
                    if any(abs(a - b) > 1e-9 for a, b in zip(mine, theirs)):
                        failures += 1
                        print(f"FAILED: {name}, {size} tokens, batch {i}, {row['placement']}: {theirs}, expected {mine}")
print(f"{compared} layers of {', '.join(names)} compared")
sys.exit(failures > 0)
