"""How CPU time grows with the size of a run: growth.py MOESIM [CURVE ...], from the root of the tree, writes Markdown.

Each curve takes one size from small to large and keeps the rest. What a run takes before its first step is measured apart
and taken off. The exponent e of time = c size^e is fitted to the larger half of the sizes: where small parts weigh little.
"""
import copy, json, math, pathlib, sys, tempfile

from program import measure  # runs sys.argv[1]

BENCH = pathlib.Path("configs/bench").absolute()
LONG = 10  # seconds of CPU, from which on a run is made once


def config(name):
    made = json.loads((BENCH / f"{name}.json").read_text())
    for key in ("cluster", "model"):
        if isinstance(made[key], str):
            file = BENCH / made[key]
            made[key] = json.loads(file.read_text())
            for inner in ("gpu", "host"):
                if isinstance(made[key].get(inner), str):
                    made[key][inner] = str((file.parent / made[key][inner]).resolve())
        elif isinstance(made[key].get("gpu"), str):
            made[key]["gpu"] = str((BENCH / made[key]["gpu"]).resolve())
    return made


def seconds(experiment, threads=1):
    """CPU and wall seconds of one run, the least of two."""
    with tempfile.TemporaryDirectory() as folder:
        file = pathlib.Path(folder) / "run.json"
        file.write_text(json.dumps(experiment))
        wall, cpu, _ = measure("run", file, "--threads", threads)
        if cpu < LONG:
            again = measure("run", file, "--threads", threads)
            wall, cpu = min(wall, again[0]), min(cpu, again[1])
        return cpu, wall


def of_requests(experiment):
    """CPU seconds of these requests: of a run that has them many times more often, less those of one that has them once."""
    few, many = experiment, copy.deepcopy(experiment)
    more = min(64, max(2, round(40_000 / few["workload"]["requests"])))
    many["workload"]["requests"] *= 1 + more
    return (seconds(many)[0] - seconds(few)[0]) / more


def exponent(sizes, times):
    half = len(sizes) // 2 if len(sizes) > 3 else 0
    x, y = [math.log(s) for s in sizes[half:]], [math.log(max(t, 1e-4)) for t in times[half:]]
    mx, my = sum(x) / len(x), sum(y) / len(y)
    return sum((a - mx) * (b - my) for a, b in zip(x, y)) / sum((a - mx) ** 2 for a in x)


def replay(gpus, batch, steps, changes):
    made = config("replay_deepseek_v3")
    made["cluster"]["gpus_per_node"], made["cluster"]["nodes"] = 8, gpus // 8
    made["cluster"]["scale_up_domain"] = 8
    made["parallel"] = {"dp": gpus, "tp": 1, "ep": gpus}
    made["workload"]["arrivals"]["concurrency"] = batch * gpus
    made["workload"]["lengths"]["output"] = steps
    made["workload"]["requests"] = batch * gpus
    made["placement"]["replication"] = 1.5 if gpus <= 128 else 2
    made.update(changes)
    return made


def gpus_of_a_group(combine):
    sizes = [8, 16, 32, 64, 128, 256]  # not more than experts
    dispatch = {"prefill": "all_to_all", "decode": {"type": "all_gather", "combine": combine}}
    return sizes, [of_requests(replay(g, 16, 64, {"dispatch": dispatch})) for g in sizes]


def groups():
    sizes, times = [1, 2, 4, 8, 16, 32, 64], []
    for count in sizes:
        made = config("fleet_10k")
        made["cluster"]["nodes"] = 8 * count
        made["instances"] = count
        made["workload"]["arrivals"]["rate"] = f"{128 * count} /s"
        made["workload"]["requests"] = 3000 * count
        times.append(of_requests(made))
    return [64 * count for count in sizes], times


def experts():
    sizes, times = [8, 16, 32, 64, 128, 256, 512], []
    for count in sizes:
        made = replay(8, 64, 256, {})
        made["model"] = json.loads((BENCH / "../../models/zoo/qwen3_30b_a3b.json").read_text())
        made["model"]["experts"].update({"count": count, "per_token": 4})
        made["precision"] = {key: "bf16" for key in made["precision"]}
        made["placement"]["replication"] = 2 if count < 16 else 1.5
        made["workload"]["gating"]["preset"] = "qwen3"
        times.append(of_requests(made))
    return sizes, times


def batch():
    sizes = [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024]
    limits = {"scheduling": {"type": "decode_only", "max_num_seqs": 1024}}
    return sizes, [of_requests(replay(16, b, 64, limits)) for b in sizes]


def requests():
    sizes, times = [10**3, 10**4, 10**5, 10**6, 10**7], []
    for count in sizes:
        made = config("serving_plain")
        made["workload"]["requests"] = count
        times.append(seconds(made)[0])
    return sizes, times


def threads():
    made = config("replay_deepseek_v3")
    made["workload"]["requests"] = 65536
    return [1, 2], [seconds(made, count)[1] for count in (1, 2)]


CURVES = {
    "gpus": ("GPUs of one EP group, all-gather + reduce-scatter", "16 sequences a GPU, 64 decode steps of 58 layers, METRO",
             lambda: gpus_of_a_group("reduce_scatter")),
    "all_to_all": ("GPUs of one EP group, combine all-to-all", "the same", lambda: gpus_of_a_group("all_to_all")),
    "groups": ("GPUs of a fleet", "groups of 64 GPUs, 3,000 requests a group, sampled", groups),
    "experts": ("experts of a layer", "48 layers, top 4, 8 GPUs, 64 sequences a GPU, 256 decode steps, METRO", experts),
    "batch": ("sequences of a GPU", "16 GPUs, 64 decode steps of 58 layers, METRO", batch),
    "requests": ("requests of a run", "8 GPUs, sampled, with the start of the run", requests),
    "threads": ("threads", "exact replay, wall seconds; less is better", threads),
}


for key in sys.argv[2:] or CURVES:
    title, what, curve = CURVES[key]
    sizes, times = curve()
    e = exponent(sizes, times)
    print(f"\n| {title} | " + " | ".join(f"{size:,}" for size in sizes) + " | exponent |")
    print("|---" * (len(sizes) + 2) + "|")
    print("| CPU s |" if key != "threads" else "| s |", " | ".join(f"{t:.3g}" for t in times), f"| {e:.2f} |", flush=True)
    print(f"\n{what[0].upper()}{what[1:]}.")
