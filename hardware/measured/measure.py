#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measures one GPU: ceilings, experts by how many are active, choices of replicas, watts.

    python3 hardware/measured/measure.py -o h200.csv

Needs a CUDA GPU, PyTorch 2.9 or later and nvcc; takes some two minutes. The settings of the GPU stay as they are.
Columns of the CSV: what, shape (KEY=VALUE), us of one call (median, in a CUDA graph where nothing is said),
bytes and flops that the call needs at least, watts (mean draw of the whole GPU while the call repeats).
"""
import argparse
import csv
import ctypes
import datetime
import pathlib
import statistics
import subprocess
import sys
import tempfile
import threading
import time

import torch

HERE = pathlib.Path(__file__).resolve().parent
rows = []


def row(what, shape, us, bytes_=None, flops=None, watts=None, megahertz=None):
    shape = " ".join(f"{key}={value}" for key, value in shape.items()) if isinstance(shape, dict) else shape
    line = [what, shape, f"{us:.3f}" if us is not None else "", f"{bytes_:.0f}" if bytes_ else "", f"{flops:.0f}" if flops else "",
            f"{watts:.0f}" if watts else "", f"{megahertz:.0f}" if megahertz else ""]
    rows.append(line)
    print(",".join(line), flush=True)


def graph_of(calls):
    """A CUDA graph of these calls, warmed up."""
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for call in calls[:2]:
            call()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            for call in calls:
                call()
    return graph


def median_us(calls, repeats=15):
    """Of one call, from a graph of all of them."""
    graph = graph_of(calls)
    times = []
    for i in range(repeats + 3):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        if i >= 3:
            times.append(1e3 * begin.elapsed_time(end) / len(calls))
    del graph
    return statistics.median(times)


class Meter:
    """Watts and clock of the GPU by NVML, some fifty times a second, in a thread of its own."""

    def __init__(self):
        self.nvml = ctypes.CDLL("libnvidia-ml.so.1")
        self.nvml.nvmlInit_v2()
        self.device = ctypes.c_void_p()
        self.nvml.nvmlDeviceGetHandleByIndex_v2(0, ctypes.byref(self.device))

    def text(self, function, *arguments):
        buffer = ctypes.create_string_buffer(96)
        getattr(self.nvml, function)(*arguments, buffer, 96)
        return buffer.value.decode()

    def number(self, function, *arguments, kind=ctypes.c_uint):
        value = kind()
        failed = getattr(self.nvml, function)(self.device, *arguments, ctypes.byref(value))
        return None if failed else value.value

    def millijoules(self):
        return self.number("nvmlDeviceGetTotalEnergyConsumption", kind=ctypes.c_ulonglong)

    def draw(self, work, seconds):
        """Mean watts, MHz of the SMs and calls while `work` repeats, from a quarter of the time on."""
        stop, clocks, watts = threading.Event(), [], []

        def look():
            while not stop.is_set():
                clocks.append(self.number("nvmlDeviceGetClockInfo", 1))
                watts.append(self.number("nvmlDeviceGetPowerUsage") / 1e3)
                time.sleep(0.02)

        thread = threading.Thread(target=look)
        begin = time.time()
        while time.time() < begin + seconds / 4:
            work()
            torch.cuda.synchronize()
        first, since, calls = self.millijoules(), time.time(), 0
        thread.start()
        while time.time() < begin + seconds:
            work()
            torch.cuda.synchronize()
            calls += 1
        spent = time.time() - since
        last = self.millijoules()
        stop.set()
        thread.join()
        mean = (last - first) / 1e3 / spent if first is not None and last is not None else statistics.mean(watts)
        return mean, statistics.mean(clocks), 1e6 * spent / max(calls, 1)


def random_fp8(*shape):
    return (torch.randn(*shape, device="cuda", dtype=torch.bfloat16) * 0.1).to(torch.float8_e4m3fn)


def memory(meter):
    for line in compiled("memory"):
        what, shape, us, bytes_ = line.split(",")
        row(what, shape, float(us), int(bytes_ or 0))
    source = torch.randint(0, 255, (2**30,), device="cuda", dtype=torch.int32)
    target = torch.empty_like(source)
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    times = []
    for _ in range(9):
        begin.record()
        target.copy_(source)
        end.record()
        end.synchronize()
        times.append(1e3 * begin.elapsed_time(end))
    row("copy", {"mib": 4096}, statistics.median(times), 2 * 2**32)
    host = torch.empty(2**28, dtype=torch.uint8).pin_memory()
    device = torch.empty_like(host, device="cuda")
    for size in (2**12, 2**20, 44040192, 2**28):
        for what, to, of in (("to_gpu", device, host), ("to_host", host, device)):
            begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            times = []
            for _ in range(9):
                begin.record()
                to[:size].copy_(of[:size], non_blocking=True)
                end.record()
                end.synchronize()
                times.append(1e3 * begin.elapsed_time(end))
            row(what, {"pinned": 1}, statistics.median(times), size)


def gemms(meter):
    """Dense ones, square and those of a decode step."""
    for m, n, k in ((8192, 8192, 8192), (16, 24576, 1536), (64, 24576, 1536), (16, 7168, 16384), (128, 7168, 16384), (128, 4096, 7168)):
        copies = max(1, min(16, int(3e8 / (n * k * 2))))
        a = [torch.randn(m, k, device="cuda", dtype=torch.bfloat16) for _ in range(copies)]
        b = [torch.randn(n, k, device="cuda", dtype=torch.bfloat16) for _ in range(copies)]
        out = torch.empty(m, n, device="cuda", dtype=torch.bfloat16)
        calls = [lambda i=i: torch.mm(a[i % copies], b[i % copies].t(), out=out) for i in range(max(copies, 8))]
        row("gemm", dict(precision="bf16", m=m, n=n, k=k), median_us(calls), 2 * (m * k + n * k + m * n), 2 * m * n * k)
        one = torch.ones((), device="cuda")
        a8, b8 = [random_fp8(m, k) for _ in range(copies)], [random_fp8(n, k) for _ in range(copies)]
        calls = [lambda i=i: torch._scaled_mm(a8[i % copies], b8[i % copies].t(), one, one, out_dtype=torch.bfloat16) for i in range(max(copies, 8))]
        row("gemm", dict(precision="fp8", m=m, n=n, k=k), median_us(calls), m * k + n * k + 2 * m * n, 2 * m * n * k)


def per_tensor(meter):
    """Products in fp8 with one scale for each operand, as checkpoints with static scales are multiplied: by cuBLAS, for Llama's layers."""
    one = torch.ones((), device="cuda")
    for hidden, width, heads, kv_heads in ((8192, 28672, 64, 8), (4096, 14336, 32, 8)):
        for tp in (1, 2, 4, 8):
            for n, k in (((heads + 2 * kv_heads) * 128 // tp, hidden), (hidden, heads * 128 // tp), (2 * width // tp, hidden), (hidden, width // tp)):
                copies = max(1, min(16, int(4e8 / (n * k))))
                b8 = [random_fp8(n, k) for _ in range(copies)]
                for m in (1, 4, 8, 16, 32, 64, 128, 256, 1024, 4096):
                    a8 = random_fp8(max(m, 1), k)
                    out = torch.empty(m, n, device="cuda", dtype=torch.bfloat16)
                    calls = [lambda i=i: torch._scaled_mm(a8, b8[i % copies].t(), one, one, out_dtype=torch.bfloat16, use_fast_accum=True, out=out)
                             for i in range(max(copies, 4))]
                    row("gemm_per_tensor", dict(precision="fp8", m=m, n=n, k=k), median_us(calls, repeats=7), m * k + n * k + 2 * m * n, 2 * m * n * k)
                del b8
                torch.cuda.empty_cache()


class Experts:
    """Both GEMMs of a rank's experts and SwiGLU between them, `slots` of them held, as a fused layer without routing and permutation."""

    def __init__(self, slots, hidden, width, precision):
        self.slots, self.hidden, self.width, self.precision = slots, hidden, width, precision
        if precision == "bf16":
            self.up = torch.randn(slots, hidden, 2 * width, device="cuda", dtype=torch.bfloat16) * 0.02
            self.down = torch.randn(slots, width, hidden, device="cuda", dtype=torch.bfloat16) * 0.02
        else:
            self.up = torch.stack([random_fp8(2 * width, hidden) for _ in range(slots)]).transpose(1, 2)
            self.down = torch.stack([random_fp8(hidden, width) for _ in range(slots)]).transpose(1, 2)
            self.up_scale = torch.ones(slots, 2 * width, device="cuda")
            self.down_scale = torch.ones(slots, hidden, device="cuda")

    def calls(self, active, rows_each):
        """One call for each choice of `active` consecutive slots; all slots in turn, so that weights come from HBM."""
        calls = []
        for turn in range(8):
            counts = torch.zeros(self.slots, dtype=torch.int32)
            for i in range(active):
                counts[(turn * active + i * max(1, self.slots // active)) % self.slots if active < self.slots else i] += rows_each
            assert int((counts > 0).sum()) == active
            ends = counts.cumsum(0).to(torch.int32).cuda()
            n = active * rows_each
            x = torch.randn(n, self.hidden, device="cuda", dtype=torch.bfloat16)
            if self.precision == "bf16":
                def call(x=x, ends=ends):
                    h = torch._grouped_mm(x, self.up, offs=ends)
                    gate, up = h.chunk(2, dim=1)
                    return torch._grouped_mm((torch.nn.functional.silu(gate) * up).contiguous(), self.down, offs=ends)
            else:
                x8, y8 = x.to(torch.float8_e4m3fn), random_fp8(n, self.width)
                scale = torch.ones(n, device="cuda")
                def call(x8=x8, y8=y8, ends=ends, scale=scale):
                    torch._scaled_grouped_mm(x8, self.up, scale, self.up_scale, offs=ends, out_dtype=torch.bfloat16)
                    return torch._scaled_grouped_mm(y8, self.down, scale, self.down_scale, offs=ends, out_dtype=torch.bfloat16)
            calls.append(call)
        return calls

    def facts(self, active, n):
        size = 2 if self.precision == "bf16" else 1
        weights = 3 * self.hidden * self.width
        return size * weights * active + n * (size * self.hidden + 2 * 2 * self.width + size * self.width + 2 * self.hidden), 2 * n * weights


    def measure(self, what, about, active, rows_each):
        shape = dict(about, precision=self.precision, slots=self.slots, hidden=self.hidden, width=self.width, active=active, rows=active * rows_each)
        try:
            row(what, shape, median_us(self.calls(active, rows_each), repeats=7), *self.facts(active, active * rows_each))
        except RuntimeError as error:
            print(f"skipped: {what} {shape}: {str(error).splitlines()[0]}", file=sys.stderr)


def experts(meter):
    """Equal rows on more or fewer experts, and more rows on the same: what sets the time?"""
    for name, slots, hidden, width, precision in (("deepseek_v3", 36, 7168, 2048, "fp8"), ("deepseek_v3", 36, 7168, 2048, "bf16"),
                                                  ("qwen3_30b", 24, 2048, 768, "bf16"), ("gpt_oss_120b", 24, 2880, 2880, "bf16")):
        layer = Experts(slots, hidden, width, precision)
        for active in (1, 2, 4, 8, 12, 18, 24, 36):
            if active > slots:
                continue
            for rows_each in (1, 4, 16, 64, 256):
                if active * rows_each > 8192:
                    continue
                layer.measure("experts", dict(model=name), active, rows_each)
        del layer
        torch.cuda.empty_cache()


SLICED = (("deepseek_v3", 32, 7168, 2048, "fp8"), ("gpt_oss_20b", 4, 2880, 2880, "bf16"), ("deepseek_v2_lite", 8, 2048, 1408, "bf16"),
          ("qwen3_30b", 16, 2048, 768, "bf16"))


def slices(meter):
    """The same weights as few wide or many narrow experts: what does cutting an expert cost its kernel?"""
    for name, slots, hidden, width, precision in SLICED:
        for cut in (1, 2, 4, 8):
            if precision == "fp8" and width // cut % 16:
                continue
            layer = Experts(slots * cut, hidden, width // cut, precision)
            for share in (2, 1):
                for rows_each in (1, 4, 16):
                    active = max(1, slots * cut // share)
                    layer.measure("slices", dict(model=name, cut=cut), active, rows_each)
            del layer
            torch.cuda.empty_cache()


def fused(meter):
    """Experts as a fused kernel of 16 rows a tile has them, by how many are active and how they are cut; 1 to 16 rows each."""
    from fused_experts import FusedExperts, tilings

    def measure(what, about, slots, hidden, width, precision, actives):
        layer = FusedExperts(slots, hidden, width, precision)
        layer.check()
        for active in actives:
            best = tilings(precision)[0]
            best = min(tilings(precision), key=lambda up: median_us(layer.calls(active, up, best), repeats=5)), best
            best = best[0], min(tilings(precision), key=lambda down: median_us(layer.calls(active, best[0], down), repeats=5))
            size, weights, n = (2 if precision == "bf16" else 1), 3 * hidden * width, 4 * active
            row(what, dict(about, precision=precision, slots=slots, hidden=hidden, width=width, active=active, rows=n,
                           up="x".join(map(str, best[0])), down="x".join(map(str, best[1]))),
                median_us(layer.calls(active, *best), repeats=9),
                size * weights * active + n * (size * hidden + 4 * width + size * width + 2 * hidden), 2 * n * weights)
        del layer
        torch.cuda.empty_cache()

    for name, slots, hidden, width, precision in (("deepseek_v3", 36, 7168, 2048, "fp8"), ("qwen3_30b", 24, 2048, 768, "bf16")):
        measure("fused", dict(model=name), slots, hidden, width, precision, [n for n in (1, 2, 4, 8, 12, 18, 24, 36) if n <= slots])
    for name, slots, hidden, width, precision in SLICED:
        for cut in (1, 2, 4, 8):
            if precision == "fp8" and width // cut % 128:
                continue
            measure("fused_slices", dict(model=name, cut=cut), slots * cut, hidden, width // cut, precision, [slots * cut // 2, slots * cut])


def watts(meter):
    mean, clock, _ = meter.draw(lambda: time.sleep(0.05), 2)
    row("watts_idle", {"context": 1}, None, watts=mean, megahertz=clock)
    one = torch.ones(1, device="cuda")
    source = torch.randint(0, 255, (2**29,), device="cuda", dtype=torch.int32)
    target = torch.empty_like(source)

    def draw(what, shape, calls, bytes_, flops):
        us = median_us(calls)
        graph = graph_of(calls * max(1, int(2e4 / (us * len(calls)))))
        mean, clock, _ = meter.draw(graph.replay, 2)
        row(what, shape, us, bytes_, flops, mean, clock)

    draw("watts_launches", {}, [lambda: one.add_(1)] * 64, None, None)
    draw("watts_copy", {"mib": 2048}, [lambda: target.copy_(source)], 2 * 2**31, None)
    draw("watts_read", {"mib": 2048}, [lambda: source.max()], 2**31, None)
    small = source[: 2**21]
    draw("watts_read", {"mib": 8, "from": "L2"}, [lambda: small.max()] * 16, 2**23, None)
    del source, target
    for n in (8192, 2048):
        a, b = (torch.randn(n, n, device="cuda", dtype=torch.bfloat16) for _ in range(2))
        out = torch.empty_like(a)
        draw("watts_gemm", dict(precision="bf16", m=n, n=n, k=n), [lambda: torch.mm(a, b, out=out)] * 4, 6 * n * n, 2 * n**3)
        a8, b8 = random_fp8(n, n), random_fp8(n, n)
        scale = torch.ones((), device="cuda")
        draw("watts_gemm", dict(precision="fp8", m=n, n=n, k=n), [lambda: torch._scaled_mm(a8, b8.t(), scale, scale, out_dtype=torch.bfloat16)] * 4,
             4 * n * n, 2 * n**3)
    layer = Experts(36, 7168, 2048, "bf16")
    for rows_each in (1, 16, 64, 256):
        draw("watts_experts", dict(precision="bf16", hidden=7168, width=2048, active=36, rows=36 * rows_each), layer.calls(36, rows_each),
             *layer.facts(36, 36 * rows_each))


def compiled(name):
    """The rows that the CUDA program NAME.cu prints."""
    with tempfile.TemporaryDirectory() as folder:
        program = folder + "/" + name
        major, minor = torch.cuda.get_device_capability()
        subprocess.run(["nvcc", "-O3", "-std=c++17", f"-arch=sm_{major}{minor}", "-o", program, str(HERE / (name + ".cu"))], check=True)
        return subprocess.run([program], check=True, capture_output=True, text=True, timeout=120).stdout.splitlines()


def routers(meter):
    for line in compiled("routers"):
        what, shape, us = line.split(",")
        row("router_" + what, shape.replace(" most=0.00", ""), float(us))
    for line in compiled("topk"):
        what, shape, us = line.split(",")
        row(what, shape, float(us))


def passes(meter):
    import row_passes

    for what, shape, us, bytes_ in row_passes.measured(median_us):
        row(what, shape, us, bytes_)


def link(meter):
    for line in compiled("host_link"):
        what, shape, us, bytes_ = line.split(",")
        row(what, shape, float(us), int(bytes_))


def main():
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("-o", "--output", required=True)
    options.add_argument("--only", nargs="*", default=["routers", "memory", "gemms", "per_tensor", "experts", "slices", "fused", "passes", "link", "watts"])
    options = options.parse_args()
    meter = Meter()
    limit = meter.number("nvmlDeviceGetEnforcedPowerLimit")
    about = (f"# {torch.cuda.get_device_name()}, driver {meter.text('nvmlSystemGetDriverVersion')}, PyTorch {torch.__version__}, "
             f"limit {limit / 1e3:.0f} W, {datetime.date.today()}: python3 hardware/measured/measure.py")
    print(about, flush=True)
    parts = dict(routers=routers, memory=memory, gemms=gemms, per_tensor=per_tensor, experts=experts, slices=slices, fused=fused, passes=passes, link=link, watts=watts)
    for name in options.only:
        begin = time.time()
        try:
            parts[name](meter)
        except Exception as error:  # the other parts are worth having
            print(f"{name} failed: {error!r}", file=sys.stderr, flush=True)
        print(f"{name}: {time.time() - begin:.0f} s", file=sys.stderr, flush=True)
        with open(options.output, "w", newline="") as file:
            file.write(about + "\n")
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(["what", "shape", "us", "bytes", "flops", "watts", "mhz"])
            writer.writerows(rows)


if __name__ == "__main__":
    main()
