#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measures whole decode steps of Qwen3-30B-A3B in bf16 on one GPU, by the sequences and by the experts that they activate.

    python3 hardware/measured/whole_step.py -o h100_steps.csv

Needs a CUDA GPU with 70 GB, PyTorch 2.9 or later with Triton; takes a minute. Weights are random, and each layer's
routing is drawn once: every token takes 8 different experts of the first `pool`. All 48 layers, the LM head and the argmax
run in one CUDA graph. Rows are sorted by expert before the graph (engines do that in a kernel of some 5 us a layer).
Columns of the CSV: context, sequences, pool, active (experts a layer, mean), ms (median of 15 replays), rest_ms (the same graph
without the experts' GEMMs), up and down (rows, columns, depth, warps, stages of the fastest tilings).
"""
import argparse
import csv
import datetime

import torch
import torch.nn.functional as F
import triton
import triton.language as tl

from fused_experts import experts_gemm, swiglu, tilings
from measure import median_us
from row_passes import add_norm, weighted_sum

HIDDEN, HEADS, KV_HEADS, DIM, EXPERTS, TOP_K, WIDTH, LAYERS, VOCABULARY = 2048, 32, 4, 128, 128, 8, 768, 48, 151936


@triton.jit
def norm_rope_store(qkv, q, k_cache, v_cache, angles, context, position,
                    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, DIM: tl.constexpr):
    """A head of a token: its norm, its rotation, and where attention reads it."""
    token = tl.program_id(0)
    head = tl.program_id(1)
    half = tl.arange(0, DIM // 2)
    at = qkv + token * (HEADS + 2 * KV_HEADS) * DIM + head * DIM
    first = tl.load(at + half).to(tl.float32)
    second = tl.load(at + DIM // 2 + half).to(tl.float32)
    cached = ((token * context + position).to(tl.int64) * KV_HEADS) * DIM
    if head < HEADS + KV_HEADS:
        scale = tl.rsqrt((tl.sum(first * first) + tl.sum(second * second)) / DIM + 1e-6)
        angle = tl.load(angles + half)
        cos, sin = tl.cos(angle) * scale, tl.sin(angle) * scale
        if head < HEADS:
            to = q + (token * HEADS + head) * DIM
        else:
            to = k_cache + cached + (head - HEADS) * DIM
        tl.store(to + half, (first * cos - second * sin).to(tl.bfloat16))
        tl.store(to + DIM // 2 + half, (second * cos + first * sin).to(tl.bfloat16))
    else:
        to = v_cache + cached + (head - HEADS - KV_HEADS) * DIM
        tl.store(to + half, first.to(tl.bfloat16))
        tl.store(to + DIM // 2 + half, second.to(tl.bfloat16))


@triton.jit
def top_k_of(logits, ids, weights, EXPERTS: tl.constexpr, TOP_K: tl.constexpr):
    token = tl.program_id(0)
    at = tl.arange(0, EXPERTS)
    x = tl.load(logits + token * EXPERTS + at).to(tl.float32)
    x = tl.exp(x - tl.max(x))
    sum = 0.0
    for k in tl.static_range(TOP_K):
        best = tl.argmax(x, 0)
        value = tl.max(x)
        sum += value
        tl.store(ids + token * TOP_K + k, best)
        tl.store(weights + token * TOP_K + k, value)
        x = tl.where(at == best, -1.0, x)
    tl.debug_barrier()
    for k in tl.static_range(TOP_K):
        tl.store(weights + token * TOP_K + k, tl.load(weights + token * TOP_K + k) / sum)


@triton.jit
def copy_rows(x, source, to, out, width, SIZE: tl.constexpr):
    row = tl.program_id(0)
    at = tl.program_id(1) * SIZE + tl.arange(0, SIZE)
    value = tl.load(x + tl.load(source + row).to(tl.int64) * width + at, mask=at < width)
    tl.store(out + tl.load(to + row).to(tl.int64) * width + at, value, mask=at < width)


class Routing:
    """A layer's tokens by expert, in tiles of `rows` rows of one expert each."""

    def __init__(self, chosen, rows):
        tokens = chosen.shape[0]
        flat = chosen.flatten()
        order = flat.argsort(stable=True)
        counts = torch.bincount(flat, minlength=EXPERTS)
        tiles = (counts + rows - 1) // rows
        begin_row, begin_tile = counts.cumsum(0) - counts, tiles.cumsum(0) - tiles
        sorted_expert = flat[order]
        position = begin_tile[sorted_expert] * rows + torch.arange(tokens * TOP_K, device="cuda") - begin_row[sorted_expert]
        self.tiles = int(tiles.sum())
        self.expert_of_tile = torch.repeat_interleave(torch.arange(EXPERTS, device="cuda"), tiles).to(torch.int32)
        self.source = (order // TOP_K).to(torch.int32)
        self.to = position.to(torch.int32)
        self.place = torch.empty(tokens * TOP_K, dtype=torch.int32, device="cuda")
        self.place[order] = self.to
        self.active = int((counts > 0).sum())


class Model:
    def __init__(self):
        def weights(*shape):
            return torch.empty(*shape, device="cuda", dtype=torch.bfloat16).normal_(std=0.02)

        self.layers = [dict(qkv=weights((HEADS + 2 * KV_HEADS) * DIM, HIDDEN), o=weights(HIDDEN, HEADS * DIM),
                            gate=weights(EXPERTS, HIDDEN), up=weights(EXPERTS, 2 * WIDTH, HIDDEN),
                            down=weights(EXPERTS, HIDDEN, WIDTH)) for _ in range(LAYERS)]
        self.norm = torch.ones(HIDDEN, device="cuda", dtype=torch.bfloat16)
        self.head, self.embedding = weights(VOCABULARY, HIDDEN), weights(VOCABULARY, HIDDEN)
        self.angles = torch.rand(DIM // 2, device="cuda")
        self.one = torch.ones(1, device="cuda")

    def experts(self, layer, x, routing, weights, rows, up, down, gemms=True):
        a = torch.empty(routing.tiles * rows, HIDDEN, device="cuda", dtype=torch.bfloat16)
        both = torch.empty(routing.tiles * rows, 2 * WIDTH, device="cuda", dtype=torch.bfloat16)
        y = torch.empty(routing.tiles * rows, WIDTH, device="cuda", dtype=torch.bfloat16)
        z = torch.empty(routing.tiles * rows, HIDDEN, device="cuda", dtype=torch.bfloat16)
        out = torch.empty_like(x)
        copy_rows[(x.shape[0] * TOP_K, 2)](x, routing.source, routing.to, a, HIDDEN, 1024)
        if gemms:
            self.gemm(a, layer["up"], both, routing, rows, up)
        swiglu[(1, routing.tiles * rows)](both, y, WIDTH, 1024)
        if gemms:
            self.gemm(y, layer["down"], z, routing, rows, down)
        weighted_sum[(x.shape[0], 2)](z, routing.place, weights, out, HIDDEN, TOP_K, 1024)
        return out

    def gemm(self, x, w, out, routing, rows, tiling):
        columns, depth, warps, stages = tiling
        n, k = w.shape[1], w.shape[2]
        experts_gemm[(triton.cdiv(n, columns), routing.tiles)](x, w, out, self.one, self.one, routing.expert_of_tile, n, k,
                                                               rows, columns, depth, False, num_warps=warps, num_stages=stages)

    def step(self, tokens, caches, context, routings, rows, up, down, gemms):
        batch = tokens.shape[0]
        residual = torch.zeros(batch, HIDDEN, device="cuda", dtype=torch.bfloat16)
        x, out = F.embedding(tokens, self.embedding), torch.empty_like(residual)
        q = torch.empty(batch, HEADS, 1, DIM, device="cuda", dtype=torch.bfloat16)
        ids = torch.empty(batch, TOP_K, device="cuda", dtype=torch.int32)
        weights = torch.empty(batch, TOP_K, device="cuda")
        for n, (layer, routing) in enumerate(zip(self.layers, routings)):
            keys, values = caches[n % len(caches)]
            add_norm[(batch,)](x, residual, self.norm, out, HIDDEN, HIDDEN, num_warps=8)
            qkv = F.linear(out, layer["qkv"])
            norm_rope_store[(batch, HEADS + 2 * KV_HEADS)](qkv, q, keys, values, self.angles, context, context - 1,
                                                           HEADS, KV_HEADS, DIM, num_warps=1)
            with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.FLASH_ATTENTION):
                heads = F.scaled_dot_product_attention(q, keys.transpose(1, 2), values.transpose(1, 2), enable_gqa=True)
            x = F.linear(heads.reshape(batch, HEADS * DIM), layer["o"])
            add_norm[(batch,)](x, residual, self.norm, out, HIDDEN, HIDDEN, num_warps=8)
            top_k_of[(batch,)](F.linear(out, layer["gate"]), ids, weights, EXPERTS, TOP_K, num_warps=1)
            x = self.experts(layer, out, routing, weights, rows, up, down, gemms)
        add_norm[(batch,)](x, residual, self.norm, out, HIDDEN, HIDDEN, num_warps=8)
        return F.linear(out, self.head).argmax(-1)

    def check(self):
        """A layer's experts against PyTorch in fp32."""
        x = torch.randn(24, HIDDEN, device="cuda", dtype=torch.bfloat16)
        chosen = torch.rand(24, EXPERTS, device="cuda").topk(TOP_K).indices
        weights = torch.rand(24, TOP_K, device="cuda")
        layer = self.layers[0]
        want = torch.zeros(24, HIDDEN, device="cuda")
        for token in range(24):
            for k, expert in enumerate(chosen[token].tolist()):
                gate, up = (layer["up"][expert].float() @ x[token].float()).chunk(2)
                want[token] += weights[token, k] * (layer["down"][expert].float() @ (F.silu(gate) * up))
        for rows in (16, 32):
            got = self.experts(layer, x, Routing(chosen, rows), weights, rows, (64, 64, 4, 4), (64, 64, 4, 4)).float()
            error = ((got - want).norm() / want.norm()).item()
            assert error < 0.02, f"the experts differ from PyTorch's by {error}"


def fastest(model, chosen, layers=6):
    """Rows of a tile and the tilings of both GEMMs that are fastest over some layers."""
    active = int((torch.bincount(chosen[0].flatten(), minlength=EXPERTS) > 0).sum())
    mean = chosen[0].numel() / active
    best = None
    for rows in (16, 32, 64, 128):
        if rows > 16 and rows > 2 * mean or rows * 4 < mean:
            continue
        routings = [Routing(chosen[n], rows) for n in range(layers)]
        found = []
        for name, n, k in (("up", 2 * WIDTH, HIDDEN), ("down", HIDDEN, WIDTH)):
            x = torch.randn(routings[0].tiles * rows * 2, k, device="cuda", dtype=torch.bfloat16)
            out = torch.empty(x.shape[0], n, device="cuda", dtype=torch.bfloat16)

            def calls(tiling):
                for layer, routing in zip(model.layers, routings):
                    model.gemm(x, layer[name], out, routing, rows, tiling)

            found.append(min((median_us([lambda: calls(t)], repeats=3), t) for t in tilings("bf16") if rows * t[0] <= 8192))
        if best is None or found[0][0] + found[1][0] < best[0]:
            best = found[0][0] + found[1][0], rows, found[0][1], found[1][1]
    return best[1:]


def main():
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("-o", "--output", required=True)
    options.add_argument("--context", type=int, default=512)
    options = options.parse_args()
    torch.manual_seed(1)
    model = Model()
    model.check()
    about = f"# {torch.cuda.get_device_name()}, PyTorch {torch.__version__}, {datetime.date.today()}: python3 hardware/measured/whole_step.py"
    lines = []
    cases = [(n, EXPERTS) for n in (1, 2, 4, 8, 16, 32, 64, 128, 256)] + [(n, pool) for n in (16, 64, 256) for pool in (8, 16, 32, 64)]
    with torch.no_grad():
        for batch, pool in cases:
            caches = [[torch.randn(batch, options.context, KV_HEADS, DIM, device="cuda", dtype=torch.bfloat16) for _ in range(2)]
                      for _ in range(4)]
            chosen = [torch.rand(batch, pool, device="cuda").topk(TOP_K).indices for _ in range(LAYERS)]
            rows, up, down = fastest(model, chosen)
            routings = [Routing(c, rows) for c in chosen]
            tokens = torch.randint(VOCABULARY, (batch,), device="cuda")
            times = [median_us([lambda: model.step(tokens, caches, options.context, routings, rows, up, down, gemms)]) / 1e3
                     for gemms in (True, False)]
            lines.append([options.context, batch, pool, f"{sum(r.active for r in routings) / LAYERS:.2f}", *(f"{t:.3f}" for t in times),
                          f"{rows}x" + "x".join(map(str, up)), f"{rows}x" + "x".join(map(str, down))])
            print(*lines[-1], sep=",", flush=True)
            with open(options.output, "w", newline="") as file:
                file.write(about + "\n")
                writer = csv.writer(file, lineterminator="\n")
                writer.writerow(["context", "sequences", "pool", "active", "ms", "rest_ms", "up", "down"])
                writer.writerows(lines)
            del caches, routings
            torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
