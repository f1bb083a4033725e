# SPDX-License-Identifier: Apache-2.0
"""Policies of moesim, written anew in Python: their reports must equal those of C++. And some that break the contract."""
import numpy as np


class Even:
    """`even`: every replica an equal share of its expert's tokens, the first ones the rest."""

    needs_global_counts = False

    def route(self, tokens, placement):
        of_slot = np.zeros(placement.slots, dtype=np.int32)
        for expert, count in enumerate(tokens):
            slots = placement.slots_of(expert)
            share, left = divmod(count, len(slots))
            of_slot[slots] = share
            of_slot[slots[:left]] += 1
        return of_slot


class Metro:
    """`metro`: each active expert on the GPU, of those that host the expert, with the fewest active experts so far."""

    def __init__(self):
        self.hosts = {}  # by layer: a list of (GPU, slot) for each expert

    def route(self, tokens, placement):
        hosts = self.hosts.get(placement.layer)
        if hosts is None:
            hosts = self.hosts[placement.layer] = [
                list(zip(placement.host_gpus_of(expert).tolist(), placement.hosts_of(expert).tolist()))
                for expert in range(placement.experts)
            ]
        active = [0] * placement.gpus
        of_slot = [0] * placement.slots
        for expert, count in enumerate(tokens.tolist()):
            if count:
                best, slot = hosts[expert][0]
                for gpu, other in hosts[expert]:
                    if active[gpu] < active[best]:
                        best, slot = gpu, other
                active[best] += 1
                of_slot[slot] = count
        return of_slot


class VllmLegacy:
    """`vllm_legacy`: (row on its rank * k + place in top-k) mod replicas."""

    def route_rows(self, ids, source_rank, placement):
        tokens, k = ids.shape
        row = np.arange(tokens) - np.searchsorted(source_rank, source_rank)
        position = row[:, None] * k + np.arange(k)
        slots = [placement.slots_of(expert) for expert in range(placement.experts)]
        return np.array([[slots[e][p % len(slots[e])] for e, p in zip(*pair)] for pair in zip(ids, position)])


class Linear:
    """`linear`: consecutive experts in blocks, redundant slots from expert 0 on."""

    def place(self, load, problem):
        return np.arange(problem.gpus * problem.slots_per_gpu) % problem.experts


class Jsq:
    """`jsq`: the rank with the fewest requests; ties to the fewest KV tokens, then to the lowest rank."""

    def route(self, request, ranks):
        return ranks.rank[np.lexsort((ranks.kv_tokens, ranks.waiting + ranks.running))[0]]


class Shift:
    """A rebalancer that moves all experts of layer 0 one GPU on, once."""

    def __init__(self, after=3):
        self.left = after

    def after_step(self, tokens, placements):
        self.left -= 1
        if self.left == 0:
            first = placements[0]
            return {0: np.roll(first.expert_of_slot.reshape(first.gpus, -1), 1, axis=0)}


class Broken:
    """Breaks the contract of every kind as `how` says."""

    def __init__(self, how):
        self.how = how

    def route(self, tokens, placement):
        if not hasattr(placement, "slots"):
            return 99  # a request router
        right = Even().route(tokens, placement)
        if self.how == "other_expert":
            right[placement.slots_of(int(np.argmax(tokens)))] = 0
        if self.how == "raises":
            return 1 // 0
        return {"floats": right / 2, "short": right[:-1], "negative": right - 1, "none": None}.get(self.how, right)

    def place(self, load, problem):
        slots = np.zeros(problem.gpus * problem.slots_per_gpu, dtype=int)
        return slots if self.how == "missing" else slots - 1


class WrongSlot:
    def route_rows(self, ids, source_rank, placement):
        return np.zeros(ids.shape, dtype=int)
