# SPDX-License-Identifier: Apache-2.0
"""Passes over the rows of a step: the norm with its residual, SwiGLU, copies of rows to experts and their sum."""
import torch
import triton
import triton.language as tl


@triton.jit
def add_norm(x, residual, weight, out, width, SIZE: tl.constexpr):
    row = tl.program_id(0)
    at = tl.arange(0, SIZE)
    inside = at < width
    sum = tl.load(x + row * width + at, mask=inside, other=0.0).to(tl.float32)
    sum += tl.load(residual + row * width + at, mask=inside, other=0.0).to(tl.float32)
    tl.store(residual + row * width + at, sum.to(tl.bfloat16), mask=inside)
    scale = tl.rsqrt(tl.sum(sum * sum) / width + 1e-6)
    tl.store(out + row * width + at, (sum * scale * tl.load(weight + at, mask=inside, other=0.0)).to(tl.bfloat16), mask=inside)


@triton.jit
def permute(x, source, out, width, SIZE: tl.constexpr):
    row = tl.program_id(0)
    at = tl.program_id(1) * SIZE + tl.arange(0, SIZE)
    value = tl.load(x + tl.load(source + row).to(tl.int64) * width + at, mask=at < width)
    tl.store(out + row * width + at, value, mask=at < width)


@triton.jit
def weighted_sum(x, place, weight, out, width, TOP_K: tl.constexpr, SIZE: tl.constexpr):
    row = tl.program_id(0)
    at = tl.program_id(1) * SIZE + tl.arange(0, SIZE)
    sum = tl.zeros((SIZE,), dtype=tl.float32)
    for k in tl.static_range(TOP_K):
        value = tl.load(x + tl.load(place + row * TOP_K + k).to(tl.int64) * width + at, mask=at < width, other=0.0)
        sum += value.to(tl.float32) * tl.load(weight + row * TOP_K + k)
    tl.store(out + row * width + at, sum.to(tl.bfloat16), mask=at < width)


def measured(median_us):
    """Yields what, shape, us, bytes."""
    from fused_experts import swiglu

    def bf16(*shape):
        return torch.randn(*shape, device="cuda", dtype=torch.bfloat16)

    for width in (2048, 7168):
        weight = bf16(width)
        for rows in (1, 16, 128, 1024, 8192):
            copies = max(1, min(16, int(2e8 / (rows * width * 8))))
            x, residual, out = ([bf16(rows, width) for _ in range(copies)] for _ in range(3))
            size = triton.next_power_of_2(width)
            calls = [lambda i=i % copies: add_norm[(rows,)](x[i], residual[i], weight, out[i], width, size, num_warps=8) for i in range(16)]
            yield "add_norm", dict(rows=rows, width=width), median_us(calls), 8 * rows * width
    for width in (768, 2048):
        for rows in (16, 128, 1024, 8192):
            copies = max(1, min(16, int(2e8 / (rows * width * 6))))
            both, out = [bf16(rows, 2 * width) for _ in range(copies)], [bf16(rows, width) for _ in range(copies)]
            calls = [lambda i=i % copies: swiglu[(triton.cdiv(width, 1024), rows)](both[i], out[i], width, 1024) for i in range(16)]
            yield "swiglu", dict(rows=rows, width=width), median_us(calls), 6 * rows * width
    top_k = 8
    for width in (2048, 7168):
        for tokens in (16, 128, 1024):
            rows = tokens * top_k
            x, copied, out = bf16(tokens, width), bf16(rows, width), bf16(tokens, width)
            order = torch.randperm(rows, device="cuda")
            source = (order // top_k).to(torch.int32)
            place = order.argsort().to(torch.int32)
            shares = torch.rand(rows, device="cuda")
            grid = triton.cdiv(width, 1024)
            calls = [lambda: permute[(rows, grid)](x, source, copied, width, 1024)] * 16
            yield "permute", dict(tokens=tokens, top_k=top_k, width=width), median_us(calls), 2 * (tokens + rows) * width
            calls = [lambda: weighted_sum[(tokens, grid)](copied, place, shares, out, width, top_k, 1024)] * 16
            yield "weighted_sum", dict(tokens=tokens, top_k=top_k, width=width), median_us(calls), 2 * (tokens + rows) * width
