# SPDX-License-Identifier: Apache-2.0
"""One GEMM over the active experts of a rank, as engines' fused MoE kernels do it: tiles of 16 rows, one expert each.

PyTorch's grouped GEMM fills tiles of 128 rows and starts a kernel for the whole; engines' decode kernels do not. Weights
are [slots, n, k] with k contiguous; fp8 has a scale for 128 x 128 weights and for 128 inputs of a row.
"""
import torch
import triton
import triton.language as tl

ROWS = 16


@triton.jit
def experts_gemm(a, w, out, a_scale, w_scale, expert_of_tile, n, k,
                 ROWS: tl.constexpr, COLS: tl.constexpr, DEPTH: tl.constexpr, SCALED: tl.constexpr):
    tile = tl.program_id(1)
    column = tl.program_id(0) * COLS
    expert = tl.load(expert_of_tile + tile).to(tl.int64)
    rows = tile * ROWS + tl.arange(0, ROWS)
    cols = column + tl.arange(0, COLS)
    depth = tl.arange(0, DEPTH)
    a_at = a + rows[:, None] * k + depth[None, :]
    w_at = w + expert * n * k + cols[None, :].to(tl.int64) * k + depth[:, None]
    sum = tl.zeros((ROWS, COLS), dtype=tl.float32)
    blocks = (k + 127) // 128
    for begin in range(0, k, DEPTH):
        x = tl.load(a_at, mask=depth[None, :] < k - begin, other=0.0)
        y = tl.load(w_at, mask=(depth[:, None] < k - begin) & (cols[None, :] < n), other=0.0)
        if SCALED:
            x_scale = tl.load(a_scale + rows * blocks + begin // 128)
            y_scale = tl.load(w_scale + expert * ((n + 127) // 128) * blocks + column // 128 * blocks + begin // 128)
            sum += tl.dot(x, y) * x_scale[:, None] * y_scale
        else:
            sum = tl.dot(x, y, sum)
        a_at += DEPTH
        w_at += DEPTH
    tl.store(out + rows[:, None] * n + cols[None, :], sum.to(tl.bfloat16), mask=cols[None, :] < n)


@triton.jit
def swiglu(both, out, width, SIZE: tl.constexpr):
    row = tl.program_id(1)
    at = tl.program_id(0) * SIZE + tl.arange(0, SIZE)
    gate = tl.load(both + row * 2 * width + at, mask=at < width).to(tl.float32)
    up = tl.load(both + row * 2 * width + width + at, mask=at < width).to(tl.float32)
    tl.store(out + row * width + at, (gate * tl.sigmoid(gate) * up).to(tl.bfloat16), mask=at < width)


def tilings(precision):
    """COLS, DEPTH, warps, stages that are tried; the fastest counts, as in engines' tuned files."""
    if precision == "fp8":
        return [(64, 128, 4, 4), (128, 128, 4, 3), (128, 128, 4, 4), (32, 128, 4, 4), (64, 128, 4, 6)]
    return [(64, 64, 4, 4), (128, 64, 4, 4), (64, 128, 4, 4), (128, 128, 4, 3), (32, 128, 4, 4), (32, 64, 4, 5)]


class FusedExperts:
    """`slots` experts of a rank: both GEMMs and, in bf16, SwiGLU between them."""

    def __init__(self, slots, hidden, width, precision):
        self.slots, self.hidden, self.width, self.precision = slots, hidden, width, precision
        self.up, self.up_scale = self.weights(2 * width, hidden)
        self.down, self.down_scale = self.weights(hidden, width)

    def weights(self, n, k):
        w = torch.randn(self.slots, n, k, device="cuda", dtype=torch.bfloat16) * 0.02
        if self.precision == "bf16":
            return w, torch.ones(1, device="cuda")
        return w.to(torch.float8_e4m3fn), torch.ones(self.slots, -(-n // 128), -(-k // 128), device="cuda")

    def inputs(self, tiles, k):
        x = torch.randn(tiles * ROWS, k, device="cuda", dtype=torch.bfloat16)
        if self.precision == "bf16":
            return x, torch.ones(1, device="cuda")
        return x.to(torch.float8_e4m3fn), torch.ones(tiles * ROWS, -(-k // 128), device="cuda")

    def gemm(self, x, x_scale, w, w_scale, out, experts, tiling):
        columns, depth, warps, stages = tiling
        n, k = w.shape[1], w.shape[2]
        experts_gemm[(triton.cdiv(n, columns), len(experts))](x, w, out, x_scale, w_scale, experts, n, k, ROWS, columns, depth,
                                                              self.precision == "fp8", num_warps=warps, num_stages=stages)

    def calls(self, active, up_tiling, down_tiling):
        """Eight calls, each of the next `active` slots, so that weights come from HBM."""
        calls = []
        for turn in range(8):
            experts = torch.tensor(sorted((turn * active + i) % self.slots for i in range(active)), dtype=torch.int32, device="cuda")
            x, x_scale = self.inputs(active, self.hidden)
            y, y_scale = self.inputs(active, self.width)
            both = torch.empty(active * ROWS, 2 * self.width, device="cuda", dtype=torch.bfloat16)
            out = torch.empty(active * ROWS, self.hidden, device="cuda", dtype=torch.bfloat16)

            def call(experts=experts, x=x, x_scale=x_scale, y=y, y_scale=y_scale, both=both, out=out):
                self.gemm(x, x_scale, self.up, self.up_scale, both, experts, up_tiling)
                if self.precision == "bf16":
                    swiglu[(triton.cdiv(self.width, 1024), active * ROWS)](both, y, self.width, 1024)
                self.gemm(y, y_scale, self.down, self.down_scale, out, experts, down_tiling)

            calls.append(call)
        return calls

    def check(self):
        """The kernel against PyTorch, for two experts."""
        experts = torch.tensor([0, self.slots - 1], dtype=torch.int32, device="cuda")
        x, x_scale = self.inputs(2, self.hidden)
        out = torch.empty(2 * ROWS, 2 * self.width, device="cuda", dtype=torch.bfloat16)
        for tiling in tilings(self.precision):
            self.gemm(x, x_scale, self.up, self.up_scale, out, experts, tiling)
            for tile, expert in enumerate(experts.tolist()):
                want = x[tile * ROWS:(tile + 1) * ROWS].float() @ self.up[expert].float().t()
                error = (out[tile * ROWS:(tile + 1) * ROWS].float() - want).abs().max().item()
                assert error < 0.05 * want.abs().max().item() + 1e-3, f"{tiling}: {error}"
