#!/usr/bin/env python3
"""What users wait for: the program as a whole, its times, its memory, its bytes, beside the goals of README.md.

  tests/bench/program.py MOESIM [--quick]

--quick leaves out the million requests (some three minutes)."""
import json, os, pathlib, struct, subprocess, sys, tempfile, time

root = pathlib.Path(__file__).resolve().parents[2]


def run(*arguments):
    """stdout, seconds passed, seconds computed, most memory in bytes."""
    start = time.perf_counter()
    process = subprocess.Popen([moesim, *map(str, arguments)], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    out = process.stdout.read()
    _, status, used = os.wait4(process.pid, 0)
    passed = time.perf_counter() - start
    if status != 0:
        sys.exit(f"moesim {' '.join(map(str, arguments))}: exit {os.waitstatus_to_exitcode(status)}")
    return out, passed, used.ru_utime + used.ru_stime, used.ru_maxrss * 1024


def row(text, measured, unit, goal, met):
    print(f"{text:<66} {measured:>9.3g} {goal:>9.3g} {unit:<5} {'met' if met else 'missed'}", flush=True)


def at_most(text, measured, goal, unit):
    row(text, measured, unit, goal, measured <= goal)


def at_least(text, measured, goal, unit):
    row(text, measured, unit, goal, measured >= goal)


def sparse_trace(folder, rows, layers=64, requests=1000):
    """A trace that is a hole: every token of every layer picks expert 0 of one."""
    (folder / "meta.json").write_text(json.dumps({
        "format": "moesim-routing-trace", "version": 1, "model": "hole", "num_experts": 1, "experts_per_token": 1,
        "layer_ids": list(range(layers)), "ids": "logical", "phases": ["decode"]}))
    each = rows // requests
    (folder / "requests.jsonl").write_text("".join(
        json.dumps({"row_start": i * each, "num_tokens": each, "prompt_rows": 0}) + "\n" for i in range(requests)))
    header = f"{{'descr': '|u1', 'fortran_order': False, 'shape': ({rows}, {layers}, 1), }}"
    header += " " * (63 - (10 + len(header)) % 64) + "\n"
    with open(folder / "topk_ids.npy", "wb") as file:
        file.write(b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header.encode())
        file.truncate(10 + len(header) + rows * layers)
    return rows * layers


def waiting():
    at_most("--help", 1e3 * min(run("--help")[1] for _ in range(9)), 20, "ms")
    at_most("run of configs/quick.json with 8 requests, start to result",
            min(run("run", root / "configs/quick.json", "--set", "/workload/requests=8")[1] for _ in range(5)), .3, "s")


def long_trace(work):
    size = sparse_trace(work, 156_250_000)
    _, passed, _, _ = run("replay", "--trace", work, "--gpus", 1, "--batch", 8, "--batches", 1, "--routing", "even",
                          "--placement", "linear")
    at_most(f"replay of one batch of a routing trace of {size / 1e9:.0f} GB", passed, .3, "s")
    _, passed, _, memory = run("trace", "info", work)
    at_most(f"most memory of `trace info`, which reads it whole ({size / 1e9 / passed:.2f} GB/s)", memory / 1e6, 200, "MB")


def two_threads(work):
    sweep = root / "configs/quick_sweep.json"
    exact = root / "configs/bench/replay_deepseek_v3.json"

    def swept(threads):
        store = work / f"{threads}.sqlite"
        passed = run("sweep", sweep, "-o", store, "--threads", threads)[1]
        run("pareto", store, "--csv", store.with_suffix(".csv"))
        return store.with_suffix(".csv").read_bytes(), passed

    def ran(threads):
        return run("run", exact, "--json", "--threads", threads, "--set", "/workload/requests=32768")[:2]

    for text, timed in (("a sweep", swept), ("one exact run", ran)):
        results = {threads: [timed(threads)] for threads in (1, 2)}
        if results[1][0][0] != results[2][0][0]:
            sys.exit(f"{text}: two threads give other bytes than one")
        at_least(f"two threads, {text}: times as fast, the same bytes", results[1][0][1] / results[2][0][1], 1.7, "x")


def fleet(requests):
    config = root / "configs/bench/fleet_10k.json"
    costs = {}
    for n in requests:
        _, passed, computed, memory = run("run", config, "--threads", 1, "--set", f"/workload/requests={n}", "--json")
        costs[n] = (passed, computed, memory)
    few, most = min(costs), max(costs)
    passed, computed, memory = costs[most]
    if most >= 1_000_000:
        at_most(f"{most:,} requests on 9,984 GPUs, sampled ({computed:.0f} s computing)", passed, 300, "s")
        at_most("the same, most memory", memory / 1e9, 4, "GB")
    at_most(f"memory per further request, {few:,} to {most:,}", (memory - costs[few][2]) / (most - few), 100, "B")
    middle = sorted(costs)[-2]
    slope = (computed - costs[middle][1]) / (most - middle) / ((costs[middle][1] - costs[few][1]) / (middle - few))
    at_most(f"time per further request, beyond {middle:,} to below", slope, 1.2, "x")


moesim = sys.argv[1]
print(f"\n{'the program as a whole':<66} {'measured':>9} {'goal':>9}")
waiting()
with tempfile.TemporaryDirectory() as folder:
    long_trace(pathlib.Path(folder))
    two_threads(pathlib.Path(folder))
fleet([10_000, 100_000] if "--quick" in sys.argv else [10_000, 100_000, 1_000_000])
