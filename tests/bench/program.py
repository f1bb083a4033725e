"""What the whole program takes, as rows of the table that `bench` prints: program.py MOESIM, from the root of the tree."""
import json, os, pathlib, re, socket, subprocess, sys, tempfile, time

MOESIM = sys.argv[1]


def row(figure, measured, goal, met):
    print(f"{figure:<66} {measured:>9} {goal:>9} {'met' if met else 'missed'}", flush=True)


def measure(*arguments):
    """Wall seconds, CPU seconds and the peak of memory in MB of one call."""
    began = time.perf_counter()
    process = subprocess.Popen([MOESIM, *map(str, arguments)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    _, status, used = os.wait4(process.pid, 0)
    if status != 0:
        sys.exit(f"{' '.join(map(str, arguments))}: exit {os.waitstatus_to_exitcode(status)}")
    return time.perf_counter() - began, used.ru_utime, used.ru_maxrss / 1024


def fastest(count, *arguments):
    return min(measure(*arguments)[0] for _ in range(count))


def start_up():
    # What starting Python and the process takes is not the program's.
    idle = min(timed(["true"]) for _ in range(9))
    help_ms = 1e3 * (min(timed([MOESIM, "--help"]) for _ in range(9)) - idle)
    row("--help, ms", f"{help_ms:.1f}", "20", help_ms < 20)
    first = min(timed([MOESIM, "run", "configs/quick.json", "--set", "/workload/requests=8"]) for _ in range(5))
    row("first result of configs/quick.json with 8 requests, s", f"{first:.2f}", "0.3", first < 0.3)


def timed(command):
    began = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return time.perf_counter() - began


def requests():
    plain = "configs/bench/serving_plain.json"
    cpu, memory = {}, {}
    for count in (10**4, 10**5, 10**6):
        _, cpu[count], memory[count] = measure("run", plain, "--set", f"/workload/requests={count}", "--threads", 1)
    for more in (10**5, 10**6):
        ratio = cpu[more] / more / (cpu[10**4] / 10**4)
        row(f"plain serving, CPU per request, {more:.0e} of them over 1e4", f"{ratio:.2f}", "1", ratio <= 1.05)
    each = (memory[10**6] - memory[10**5]) * 2**20 / (10**6 - 10**5)
    row("bytes for each further finished request", f"{each:.0f}", "100", each < 100)


def fleet():
    wall, _, memory = measure("run", "configs/bench/fleet_10k.json", "--threads", 1)
    row("fleet of 10,000 GPUs, 1,000,000 requests, s on one thread", f"{wall:.0f}", "20", wall <= 20)
    row("its memory, GiB", f"{memory / 1024:.2f}", "0.745", memory <= 763)  # .8 GB


def sessions():
    """40,000 turns of sessions, and as many requests without prefix caching whose computed tokens are as many."""
    turns = json.loads(pathlib.Path("configs/bench/sessions_100k.json").read_text())
    turns["workload"]["requests"] = 40000
    tier = {**turns, "kv_cache": {**turns["kv_cache"], "tiers": [{"capacity": "100 GB"}]}}
    lengths = {"type": "lognormal", "prompt": {"median": 260, "sigma": 0.5}, "output": {"median": 90, "sigma": 0.5}}
    plain = {**turns, "kv_cache": {}, "request_routing": "round_robin",
             "workload": {**{k: v for k, v in turns["workload"].items() if k != "sessions"}, "lengths": lengths}}
    file, cpu = pathlib.Path("configs/bench/turns.json"), []
    for config in (plain, turns, tier):
        file.write_text(json.dumps(config))
        try:
            cpu.append(min(measure("run", file, "--threads", 1)[1] for _ in range(3)))
        finally:
            file.unlink()
    for what, of in (("a session's turn", cpu[1]), ("the same with a tier below HBM", cpu[2])):
        row(f"{what}, CPU over a plain request's", f"{of / cpu[0]:.2f}", "1.5", of / cpu[0] <= 1.5)


def fidelity():
    for name, change in (("serving_plain", {"workload": {"requests": 2500}}),
                         ("fleet_10k", {"instances": 2, "workload": {"requests": 3000, "arrivals": {"rate": "200 /s"}}})):
        config = json.loads(pathlib.Path(f"configs/bench/{name}.json").read_text())
        for key, value in change.get("workload", {}).items():
            change_to = config["workload"]
            change_to[key] = {**change_to[key], **value} if isinstance(value, dict) else value
        config["instances"] = change.get("instances", config.get("instances", 1))
        file = pathlib.Path(f"configs/bench/slice_of_{name}.json")
        file.write_text(json.dumps(config))
        try:
            table = subprocess.run([MOESIM + "-lab", "validate", "--fidelity", file], check=True, capture_output=True, text=True).stdout
        finally:
            file.unlink()
        for metric in ("mean_tpot_ms", "total_token_throughput"):
            error = abs(float(re.search(rf"^{metric}.* ([-+][\d.]+) %$", table, re.M)[1]))
            row(f"sampled beside exact, slice of {name}, {metric}, %", f"{error:.2f}", "2", error <= 2)


def two_threads():
    with tempfile.TemporaryDirectory() as folder:
        compare_threads(pathlib.Path(folder))


def compare_threads(folder):
    replay = "configs/bench/replay_deepseek_v3.json"
    sweep = pathlib.Path("configs/bench/seeds.json")
    sweep.write_text(json.dumps({"base": "replay_deepseek_v3.json", "set": {"/workload/requests": 4096},
                                 "axes": {"/seed": list(range(1, 9))}}))
    try:
        stores = {threads: folder / f"{threads}.sqlite" for threads in (1, 2)}
        took = {threads: measure("sweep", sweep, "-o", store, "--threads", threads)[0] for threads, store in stores.items()}
        tables = []
        for threads, store in stores.items():
            measure("pareto", store, "--csv", folder / f"{threads}.csv")
            tables.append((folder / f"{threads}.csv").read_bytes())
    finally:
        sweep.unlink()
    row("sweep of 8 points, two threads over one", f"{took[1] / took[2]:.2f}", "1.7", took[1] / took[2] >= 1.7)
    reports = {threads: folder / f"{threads}.json" for threads in (1, 2)}
    took = {threads: fastest(3, "run", replay, "--set", "/workload/requests=65536", "--threads", threads, "-o", report)
            for threads, report in reports.items()}
    row("one exact run, two threads over one", f"{took[1] / took[2]:.2f}", "1.7", took[1] / took[2] >= 1.7)
    same = tables[0] == tables[1] and reports[1].read_bytes() == reports[2].read_bytes()
    row("their bytes are the same", "yes" if same else "no", "yes", same)
    # What the machine itself gives to two at once.
    alone = fastest(2, "run", replay, "--threads", 1)
    began = time.perf_counter()
    both = [subprocess.Popen([MOESIM, "run", replay, "--threads", "1"], stdout=subprocess.DEVNULL,
                             stderr=subprocess.DEVNULL) for _ in range(2)]
    for process in both:
        process.wait()
    print(f"(two runs at once finish in {(time.perf_counter() - began) / alone:.2f} times what one takes alone: of 2, "
          f"this machine gives {2 * alone / (time.perf_counter() - began):.2f})", flush=True)


def price():
    """Batches in a second of CPU, of `moesim price` and of StepModel in Python: EP8, each rank decodes 8 sequences, one has a
    prompt too."""
    import random
    draw = random.Random(1)
    batches = []
    for _ in range(4000):
        ranks = [{"new": 8 * [1], "context": [draw.randrange(200, 4000) for _ in range(8)]} for _ in range(8)]
        prompt = draw.choice(ranks)
        prompt["new"], prompt["context"] = prompt["new"] + [draw.randrange(64, 512)], prompt["context"] + [0]
        batches.append({"ranks": ranks})
    environment = {**os.environ, "PYTHONPATH": str(pathlib.Path(MOESIM).resolve().parents[1] / "python")}
    in_python = """import json, sys, time, moesim
model = moesim.StepModel("configs/quick.json", set={"/parallel": {"dp": 8, "ep": 8}, "/fidelity": sys.argv[1]})
batches = [json.loads(line) for line in sys.stdin]
model.price(batches[:100])
began = time.process_time()
model.price(batches[100:])
print(len(batches[100:]) / (time.process_time() - began))"""

    def cpu_s(process):
        threads = pathlib.Path(f"/proc/{process.pid}/task").glob("*/schedstat")
        return sum(int(thread.read_text().split()[0]) for thread in threads) / 1e9
    for fidelity, count, goal in ("sampled", 4000, 10000), ("exact", 400, None):
        lines = [json.dumps(batch) + "\n" for batch in batches[:count]]
        # The socket's own rate: what it takes to read the experiment is not counted.
        with tempfile.TemporaryDirectory() as folder:
            path = f"{folder}/price"
            server = subprocess.Popen([MOESIM, "price", "configs/quick.json", "--set", '/parallel={"dp":8,"ep":8}', "--set",
                                       f"/fidelity={fidelity}", "--socket", path], stderr=subprocess.DEVNULL)
            while not os.path.exists(path):
                time.sleep(.05)
            caller = socket.socket(socket.AF_UNIX)
            caller.connect(path)
            answers = caller.makefile("r")
            seconds = []
            for some in lines[:100], lines[100:]:
                began = cpu_s(server)
                for i in range(0, len(some), 100):  # as many as fit the socket's buffers
                    caller.sendall("".join(some[i:i + 100]).encode())
                    for _ in some[i:i + 100]:
                        answers.readline()
                seconds.append(cpu_s(server) - began)
            server.terminate()
            server.wait()
        rate = len(lines[100:]) / seconds[1]
        row(f"price, {fidelity}, batches/s of CPU over a socket", f"{rate:.0f}", goal or "-", goal is None or rate >= goal)
        if os.path.isdir(environment["PYTHONPATH"]):
            done = subprocess.run(["/usr/bin/python3", "-c", in_python, fidelity], input="".join(lines), check=True, env=environment,
                                  capture_output=True, text=True)
            row(f"price, {fidelity}, batches/s of CPU, StepModel in Python", f"{float(done.stdout):.0f}", "-", True)


def python():
    """Of the module in the same build, by a Python that has numpy."""
    environment = {**os.environ, "PYTHONPATH": str(pathlib.Path(MOESIM).resolve().parents[1] / "python")}
    interpreter = "/usr/bin/python3"

    def took(*words):
        began = os.times()
        subprocess.run([interpreter, *words], check=True, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        ended = os.times()
        return ended.children_user + ended.children_system - began.children_user - began.children_system

    load_ms = 1e3 * (min(took("-c", "import moesim") for _ in range(9)) - min(took("-c", "pass") for _ in range(9)))
    row("import moesim, ms of CPU", f"{load_ms:.0f}", "-", True)
    trace = "../shared/data/routing/gpt-oss-20b"
    if not os.path.isdir(trace):
        return
    replay = ["-m", "moesim", "replay", "--trace", trace, "--gpus", "8", "--replication", "1.5", "--batch", "32", "--routing"]
    ratio = min(took(*replay, "tests/python/policies.py:Metro") for _ in range(3)) / min(took(*replay, "metro") for _ in range(3))
    row("replay of gpt-oss-20b, METRO in Python over in C++", f"{ratio:.1f}", "30", ratio <= 30)


if __name__ == "__main__":
    for part in sys.argv[2:] or ["start_up", "python", "price", "two_threads", "fidelity", "requests", "sessions", "fleet"]:
        globals()[part]()
