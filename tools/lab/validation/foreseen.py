#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Does a copy that is chosen before a layer's experts are known activate fewer experts than no copies?

    tools/lab/validation/foreseen.py MOESIM TRACE [--replication 1.25] [--batch 8,16,32] [--batches 10] [--steps 32]

Code of its own, next to the program's: only placements are the program's (`place`). Half of the requests is fitted on. Of the
other half B requests decode in step, each from a random row on; 16 steps are seen before any counts. Copies are those of `joint` on 8 GPUs. Before a layer's choices
are known, each expert gets one of its copies: a local search makes the expected numbers of active experts of GPUs equal (least
sum of squares), from the probability q that an expert is active. q comes from

  static     how often experts are active on the fitted half, and B
  own, 1     what each request of the batch chose so far, averaged exponentially (0.9) from static on; chosen anew each step
  own, 16    the same, chosen anew each 16 steps
  last       what was active in the step before
  layer      what each token chose in the layer before, and how often experts follow each other on the fitted half
  both       the mean of own, 1 and layer

METRO and exact choose when the layer's experts are known. The figure is experts on the busiest GPU, mean over layers, steps
and batches, in percent of none (EPLB, one copy each); the interval is 95 % over batches."""
import argparse, json, math, os, pathlib, random, statistics, struct, subprocess, sys, tempfile

GPUS, SEEN = 8, 16  # steps that are seen before any counts


class Trace:
    def __init__(self, folder):
        self.folder = pathlib.Path(folder).resolve()
        meta = json.loads((self.folder / "meta.json").read_text())
        self.experts, self.k, self.layers = meta["num_experts"], meta["experts_per_token"], len(meta["layer_ids"])
        data = (self.folder / "topk_ids.npy").read_bytes()
        head = struct.unpack("<H", data[8:10])[0]
        kind = {"u1": "B", "u2": "H", "i4": "i"}[data[10 : 10 + head].decode().split("'descr': '")[1][1:3]]
        self.ids = memoryview(data)[10 + head :].cast(kind)
        requests = [json.loads(line) for line in (self.folder / "requests.jsonl").open()]
        self.halves, turn = ([], []), {}
        for request in requests:
            half = turn[request["workload"]] = 1 - turn.get(request["workload"], 1)
            if not request.get("has_repetition"):
                self.halves[half].append(request)

    def of(self, row, layer):
        first = (row * self.layers + layer) * self.k
        return self.ids[first : first + self.k]


def placement(moesim, trace, policy, replication):
    """[layers][experts] -> GPUs that hold the expert, fitted on the first half."""
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        for name in ("topk_ids.npy", "meta.json"):
            os.symlink(trace.folder / name, folder / name)
        (folder / "requests.jsonl").write_text("".join(json.dumps(r) + "\n" for r in trace.halves[0]))
        command = [moesim, "place", "--policy", policy, "--trace", folder, "--gpus", GPUS, "--replication", replication, "-o", folder / "p.json"]
        done = subprocess.run([*map(str, command)], capture_output=True, text=True)
        if done.returncode != 0:
            sys.exit(done.stderr)
        slots = json.loads((folder / "p.json").read_text())["physical_to_logical_map"]
    hosts = [[[] for _ in range(trace.experts)] for _ in slots]
    for layer, row in enumerate(slots):
        per_gpu = len(row) // GPUS
        for slot, expert in enumerate(row):
            if slot // per_gpu not in hosts[layer][expert]:
                hosts[layer][expert].append(slot // per_gpu)
    return hosts


def fit(trace):
    """How often a token chooses each expert, and each after each of the layer before: [layers][experts], [layers][e][f]."""
    size = range(trace.experts)
    alone = [[0] * trace.experts for _ in range(trace.layers)]
    after = [[[0] * trace.experts for _ in size] for _ in range(trace.layers)]
    tokens = 0
    for request in trace.halves[0]:
        rows = range(request["row_start"], request["row_start"] + request["num_tokens"])
        for row in random.Random(request["row_start"]).sample(rows, min(len(rows), 64)):
            tokens += 1
            before = ()
            for layer in range(trace.layers):
                now = trace.of(row, layer)
                for f in now:
                    alone[layer][f] += 1
                    for e in before:
                        after[layer][e][f] += 1
                before = now
    follow = [[[n / max(1, sum(row) / trace.k) for n in row] for row in layer] for layer in after]
    return [[n / tokens for n in layer] for layer in alone], follow


def primaries(hosts, q):
    """One GPU for each expert; moves while the sum of squares of expected active experts falls."""
    load, of = [0.0] * GPUS, [0] * len(hosts)
    for e in sorted(range(len(hosts)), key=lambda e: (len(hosts[e]) > 1, -q[e])):
        of[e] = min(hosts[e], key=lambda g: load[g])
        load[of[e]] += q[e]
    movable = [e for e in range(len(hosts)) if len(hosts[e]) > 1]
    for _ in range(20):
        moved = False
        for e in movable:
            best = min(hosts[e], key=lambda g: load[g] - (q[e] if g == of[e] else 0))
            if best != of[e] and load[best] + q[e] < load[of[e]] - 1e-12:
                load[of[e]] -= q[e]
                load[best] += q[e]
                of[e], moved = best, True
        if not moved:
            break
    return of


def busiest(of, active):
    on = [0] * GPUS
    for e in active:
        on[of[e]] += 1
    return max(on)


def metro(hosts, active):
    on = [0] * GPUS
    for e in sorted(active):
        on[min(hosts[e], key=lambda g: (on[g], g))] += 1
    return max(on)


def exact(hosts, active):
    """The least maximum, by augmenting paths under a limit that grows."""
    limit, on, of = math.ceil(len(active) / GPUS), [set() for _ in range(GPUS)], {}

    def place(e, seen):
        for g in hosts[e]:
            if g in seen:
                continue
            seen.add(g)
            if len(on[g]) < limit or any(place(f, seen) and (on[g].discard(f) or True) for f in list(on[g])):
                on[g].add(e)
                return True
        return False

    for e in active:
        while not place(e, set()):
            limit += 1
    return limit


def any_of(chances, size):
    """Probability that some token chooses the expert."""
    none = [1.0] * size
    for chance in chances:
        for e in range(size):
            none[e] *= 1 - min(1.0, chance[e])
    return [1 - n for n in none]


def play(trace, one, copies, alone, follow, batch, steps, rng):
    """Sums over layers and steps of the busiest GPU's experts, by policy."""
    k, size = trace.k, trace.experts
    chosen = rng.sample([r for r in trace.halves[1] if r["num_tokens"] > SEEN + steps], batch)
    starts = [r["row_start"] + rng.randrange(r["num_tokens"] - SEEN - steps) for r in chosen]
    of_one = [[h[0] for h in layer] for layer in one]
    static = [[1 - (1 - p) ** batch for p in layer] for layer in alone]
    fixed = {"static": [primaries(copies[l], static[l]) for l in range(trace.layers)]}
    own = [[list(alone[l]) for _ in chosen] for l in range(trace.layers)]
    last = [None] * trace.layers
    sums = dict.fromkeys(("none", "static", "own, 1", "own, 16", "last", "layer", "both", "METRO", "exact"), 0)
    held = [None] * trace.layers
    for step in range(SEEN + steps):
        before = None
        for l in range(trace.layers):
            picks = [trace.of(start + step, l) for start in starts]
            active = set(e for pick in picks for e in pick)
            mine = own[l]
            if step % 16 == 0:
                held[l] = primaries(copies[l], any_of(mine, size))
            if step >= SEEN:
                q_own = any_of(mine, size)
                if before is None:
                    q_layer, theirs = static[l], mine
                else:
                    theirs = [[sum(col) / k for col in zip(*(follow[l][e] for e in pick))] for pick in before]
                    q_layer = any_of(theirs, size)
                q_both = any_of([[(a + b) / 2 for a, b in zip(x, y)] for x, y in zip(mine, theirs)], size)
                q_last = [(e in last[l]) + 1e-3 * static[l][e] for e in range(size)]
                sums["none"] += busiest(of_one[l], active)
                sums["static"] += busiest(fixed["static"][l], active)
                sums["own, 16"] += busiest(held[l], active)
                for name, q in (("own, 1", q_own), ("last", q_last), ("layer", q_layer), ("both", q_both)):
                    sums[name] += busiest(primaries(copies[l], q), active)
                sums["METRO"] += metro(copies[l], active)
                sums["exact"] += exact(copies[l], active)
            for chance, pick in zip(mine, picks):
                for e in range(size):
                    chance[e] *= 0.9
                for e in pick:
                    chance[e] += 0.1
            last[l], before = active, picks
    return sums


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("moesim")
    parser.add_argument("trace")
    parser.add_argument("--replication", type=float, default=1.25)
    parser.add_argument("--batch", default="8,16,32")
    parser.add_argument("--batches", type=int, default=10)
    parser.add_argument("--steps", type=int, default=32)
    asked = parser.parse_args()
    trace = Trace(asked.trace)
    one = placement(asked.moesim, trace, "eplb", 1)
    copies = placement(asked.moesim, trace, "joint", asked.replication)
    alone, follow = fit(trace)
    for batch in map(int, asked.batch.split(",")):
        played = [play(trace, one, copies, alone, follow, batch, asked.steps, random.Random(f"{batch} {i}")) for i in range(asked.batches)]
        for sums in played:  # on the same copies nothing activates fewer experts than the exact choice
            if any(sums["exact"] > sums[name] for name in sums if name != "none"):
                sys.exit(f"a choice activates fewer experts than the exact one: {sums}")
        cells = []
        for name in list(played[0])[1:]:
            changes = [100 * (sums[name] / sums["none"] - 1) for sums in played]
            cells.append(f"{name} {statistics.mean(changes):+.1f} +-{1.96 * statistics.stdev(changes) / len(changes) ** 0.5:.1f}")
        print(f"{batch} requests, {asked.replication:g}x: " + "; ".join(cells))


if __name__ == "__main__":
    main()
