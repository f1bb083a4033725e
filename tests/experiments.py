#!/usr/bin/env python3
"""Do whole random experiments run under sanitizers, and do their reports hold their own laws?

  tests/experiments.py MOESIM [--seconds N]

MOESIM_SEED says where to begin (1), MOESIM_WORLDS how many (40; without end where --seconds is given). A seed is one
experiment: any policy `moesim list` knows, pools, instances, pipelines, failures, speculation, overlap, capacity, expert
memory, rebalancing, prefix caching, clients who leave, KV caches too small. It is run with one thread, and what its
report says of its config is run again with two: both must end with 0, or be refused in one line (2), and give the same
bytes. Of a report: shares, mfu and mbu are at most 1, requests and tokens are conserved, the window lies in the run,
percentiles ascend. What breaks a law stays in build/experiments, with its seed. At least half must not be refused."""
import argparse, csv, json, math, os, pathlib, random, subprocess, sys, time
from concurrent.futures import ThreadPoolExecutor

root = pathlib.Path(__file__).resolve().parents[1]
found = root / "build/experiments"
TIMEOUT = 300  # seconds: a tiny experiment takes less than one, with sanitizers ten


def policies(moesim):
    """What `moesim list` prints: extension points, and beneath each the names of its policies."""
    names = {}
    for line in subprocess.run([moesim, "list"], capture_output=True, text=True, check=True).stdout.splitlines():
        if line and not line.startswith(" "):
            names[line.strip()] = []
        elif line.startswith("  ") and not line.startswith("   "):
            list(names.values())[-1].append(line.split()[0])
    return names


WHOLE_GROUP = ("metro", "optimal", "token_balanced", "hybrid", "lplb", "llep", "quota")  # need to know what all ranks chose
ATTENDS_PART = {"window", "chunk"}


class World:
    """One random experiment."""

    def __init__(self, seed, names):
        self.random, self.names = random.Random(seed), names
        self.seed = seed

    def chance(self, share):
        return self.random.random() < share

    def one_of(self, *values):
        return self.random.choice(values)

    def time(self, low, high):
        """Log-uniform between two numbers of milliseconds."""
        return f"{low * (high / low) ** self.random.random():.4g} ms"

    def policy(self, kind, options={}, without=()):
        """Any of an extension point, with the options that some of its policies need."""
        name = self.one_of(*[name for name in self.names[kind] if name not in without])
        needed = options.get(name, {})
        return {"type": name, **(needed() if callable(needed) else needed)}

    def cluster(self, gpus):
        file = "h100x16" if gpus > 8 else self.one_of("h100x16", "h100x8", "a100_40g_x8")
        cluster = json.loads((root / f"hardware/clusters/{file}.json").read_text())
        gpu = json.loads((root / "hardware/clusters" / cluster["gpu"]).read_text())
        if self.chance(0.5):  # little room for KV caches
            gpu["hbm_capacity"] = f"{round(40 * 25 ** self.random.random())} MB"
        for key in {"profiles", "sibling"} & gpu.keys():  # beside the GPU's file, from which this one is taken
            gpu[key] = str(root / "hardware/gpus" / gpu[key])
        return {**cluster, "gpu": gpu}

    def model(self):
        gqa = {"query_heads": 8, "kv_heads": self.one_of(1, 2, 4, 8), "head_dim": 64}
        mla = {"query_heads": 8, "q_lora": self.one_of(0, 64), "kv_lora": 64, "qk_nope": 32, "qk_rope": 16, "v_dim": 32}
        layer = {"ffn": "moe"}
        pattern = [layer] if self.chance(0.7) else [{**layer, self.one_of("window", "chunk"): self.one_of(32, 100)}, layer]
        layers = [{"repeat": self.one_of(1, 2, 4), "pattern": pattern}]
        if self.chance(0.3):
            layers.insert(0, {"repeat": 1, "pattern": [{"ffn": "dense"}]})
        count = self.one_of(8, 16, 32)
        experts = {"count": count, "per_token": self.random.randint(1, 4), "width": 256, "shared_width": self.one_of(0, 256)}
        if self.chance(0.2):
            experts |= {"groups": 4, "groups_per_token": 2}
        return {"name": "tiny", "source": "made for a test", "hidden": 512, "vocabulary": 1024,
                "tied_embeddings": self.chance(0.5), "attention": self.one_of(gqa, gqa, mla), "experts": experts,
                "dense_width": 1024, "layers": layers}

    def scheduling(self, without=()):
        limits = {"max_num_batched_tokens": self.one_of(32, 64, 256, 2048), "max_num_seqs": self.random.randint(1, 16)}
        limits["max_num_batched_tokens"] = max(limits.values())
        chosen = self.policy("scheduling", without=without)
        if chosen["type"] == "decode_only":
            return chosen | {"max_num_seqs": limits["max_num_seqs"]}
        if self.chance(0.2):
            limits["long_prefill_token_threshold"] = self.one_of(16, 50)
        return chosen | limits

    def phase(self):
        """Of one phase: dispatch, and a token routing that it mostly can feed."""
        dispatch = self.policy("dispatch", without=("mega_moe",)) | {"precision": self.one_of("bf16", "bf16", "fp8")}  # no table of H100
        blind = dispatch["type"] in ("all_to_all", "low_latency") and self.chance(0.95)
        return dispatch, self.policy("token_routing", without=WHOLE_GROUP if blind else ())

    def gating(self):
        rows = {"requests": self.one_of(3, 12), "prompt_rows": self.one_of(4, 20), "decode_rows": self.one_of(4, 20)}
        return self.policy("gating", without=("recorded", "counts")) | rows

    def workload(self):
        concurrency = self.one_of({"concurrency": self.random.randint(1, 40)}, {"concurrency_per_rank": self.one_of(1, 4, 9)})
        rate = {"rate": f"{round(30 * 300 ** self.random.random())} /s"}
        if self.chance(0.2):
            rate = {"rate": [{"rate": "200 /s", "until": self.time(1, 500)}, rate]}
        arrivals = self.policy("arrivals", {"closed_loop": concurrency, "poisson": rate, "constant": rate,
                                            "gamma": rate | {"cv": self.one_of(0.3, 2)}}, without=("trace",))
        tokens = lambda median, most: {"median": median, "sigma": self.one_of(0, 1), "max": most}
        lengths = self.one_of({"type": "fixed", "prompt": self.random.randint(1, 200), "output": self.random.randint(1, 30)},
                              {"type": "lognormal", "prompt": tokens(self.one_of(5, 60), 400), "output": tokens(9, 60)})
        workload = {"arrivals": arrivals, "lengths": lengths, "gating": self.gating(), "requests": self.random.randint(1, 80)}
        if self.chance(0.2):
            workload["prefill_gating"] = self.gating()
        if self.chance(0.2):
            workload[self.one_of("timeout", "ttft_timeout")] = self.time(0.5, 200)
        if self.chance(0.2):
            workload["cancellation"] = {"share": self.one_of(0.1, 0.9, 1), "mean_after": self.time(0.5, 100)}
        return workload

    def placement(self, without=("from_file", "cut_coldest")):
        return self.policy("placement", without=without)

    def failures(self, parallel, instances):
        gpus = parallel["dp"] * parallel["tp"] * parallel["pp"]
        what = {"gpu": self.random.randrange(gpus)} if gpus > 1 and self.chance(0.8) else {}
        if instances > 1 or not what:
            what["instance"] = self.random.randrange(instances)
        events = [what | {"at": self.time(0.5, 100)}]
        if self.chance(0.6):
            events[0]["recovers_after"] = self.time(0.5, 100)
        if self.chance(0.3):
            events.append({"gpu": self.random.randrange(gpus), "at": self.time(1, 200)})
        failures = {"events": events, "detection": self.one_of("0 s", "5 ms")}
        if self.chance(0.4):
            failures["placement"] = self.placement()
        return failures

    def rebalancing(self):
        moving = {"step_interval": self.one_of(5, 20), "window_size": self.one_of(1, 20)}
        often = {"interval": self.time(1, 50), "min_saving": "0 us"}
        return self.policy("rebalancing", {"eplb_periodic": moving, "eplb_async": moving, "migrate": often})

    def expert_memory(self):
        memory = self.policy("expert_memory", without=("resident",))
        memory[self.one_of("slots_per_gpu", "slots_per_layer")] = self.one_of(1, 2, 4, 8, 16)
        memory["host"] = {"bandwidth": "52 GB/s", "latency": "10 us", "source": "made for a test"}
        memory |= {"prefetch": self.policy("prefetch"), "lookahead": self.one_of(1, 2, 9)}
        return memory

    def tiers(self):
        tier = {"capacity": self.one_of("1 MB", "20 MB", {"of_hbm": self.one_of(0.3, 1, 3)}), "per": self.one_of("rank", "node"),
                "bandwidth": self.one_of("10 MB/s", "1 GB/s", "50 GB/s"), "latency": self.one_of("0 us", "1 ms"),
                "link": self.one_of("fifo", "equal"), "eviction": self.policy("tier_eviction"), "write": self.policy("tier_write")}
        if self.chance(0.3):
            tier["aggregate_bandwidth"] = "20 MB/s"
        tiers = [tier]
        for name in ("disk", "pool"):
            if self.chance(0.4):
                scopes = ("rank", "node", "cluster")
                below = dict(tier, name=name, per=self.one_of(*scopes[scopes.index(tiers[-1]["per"]):]), path=self.one_of("staged", "direct"),
                             eviction=self.policy("tier_eviction"), write=self.policy("tier_write"))
                tiers.append(below)
        cache = {"tiers": tiers, "read": self.one_of("parked", "parked", "blocking", "layerwise"),
                 "min_load_tokens": self.one_of(0, 0, 50)}
        if len(tiers) == 1:
            cache["fetch"] = self.one_of("all", "if_shorter")
        return cache

    def sessions(self):
        tokens = lambda median: {"median": median, "sigma": self.one_of(0, 1), "max": 300}
        return {"type": "generated", "turns": self.one_of(2, {"median": 4, "sigma": 1, "max": 9}), "first": tokens(60),
                "new": tokens(20), "output": tokens(9), "gap": self.one_of("0 s", "5 ms")}

    def experiment(self):
        parallel = {"dp": self.one_of(1, 2, 4, 4), "tp": self.one_of(1, 1, 2), "pp": self.one_of(1, 1, 1, 2)}
        model, instances = self.model(), self.one_of(1, 1, 1, 2)
        ep = parallel["ep"] = parallel["dp"] * parallel["tp"]
        (prefill_dispatch, prefill_routing), (decode_dispatch, decode_routing) = self.phase(), self.phase()
        caching = self.chance(0.3) and (not ATTENDS_PART & set(str(model).split("'")) or self.chance(0.05))
        e = {"cluster": self.cluster(ep * parallel["pp"] * instances), "model": model, "parallel": parallel, "instances": instances,
             "precision": {"experts": self.one_of("bf16", "fp8", "mxfp4"), "attention": "bf16",
                           "kv_cache": self.one_of("bf16", "fp8")},
             "scheduling": self.scheduling(), "workload": self.workload(),
             "placement": self.placement() | {"replication": min(self.one_of(1, 1, 1.25, 1.5, 2), ep)},
             "token_routing": {"prefill": prefill_routing, "decode": decode_routing,
                               "mixed": self.one_of("prefill", "decode", {"decode_if_prefill_tokens_at_most": 9})},
             "dispatch": {"prefill": prefill_dispatch, "decode": decode_dispatch},
             "request_routing": self.policy("request_routing"),
             "kv_cache": {"block_size": self.one_of(1, 16, 16, 64), "prefix_caching": caching},
             "measurement": {"warmup": self.one_of(0, 0, 0.1, 0.5, 0.9)}, "seed": self.seed}
        if caching and e["workload"]["arrivals"]["type"] == "closed_loop" and self.chance(0.7):
            e["workload"]["sessions"] = self.sessions()
            del e["workload"]["lengths"]
        if caching and self.chance(0.6):
            e["kv_cache"] |= self.tiers()
        if e["scheduling"]["type"] in ("expert_groups", "earliest_deadline"):
            e["slo"] = {"ttft": self.time(1, 100)}
        elif self.chance(0.3):
            e["slo"] = {self.one_of("ttft", "tpot", "e2el"): self.time(1, 100)}
        if self.chance(0.15):
            e["capacity"] = self.policy("capacity", {name: {"factor": self.one_of(0.5, 1, 2)}
                                                     for name in self.names["capacity"] if name != "dropless"})
        if self.chance(0.15):
            e["speculative"] = {"num_speculative_tokens": self.random.randint(0, 4), "acceptance_rate": self.one_of(0, 0.7, 1)}
        # What pipelines do not take is tried with them all the same, now and then.
        rare = 0.03 if parallel["pp"] > 1 else 0.2
        if self.chance(rare):
            e["overlap"] = self.one_of("shared_expert", "combine_attention", {"type": "two_batch", "decode_tokens": 2},
                                       ["shared_expert", "combine_attention"])
        if self.chance(rare):
            e["failures"] = self.failures(parallel, instances)
        elif self.chance(rare):
            e["rebalancing"] = self.rebalancing()
        elif self.chance(rare):
            e["expert_memory"] = self.expert_memory()
        if self.chance(0.1):
            e["cuda_graph"] = {"sizes": self.one_of("powers_of_two", [1, 4, 16])}
        if self.chance(0.1):
            e["background"] = {"nvlink": 0.3, "network": 0.5}
        if self.chance(0.1):
            e["fidelity"] = "sampled"
        if self.chance(0.12):
            e["pools"] = {"prefill": {"scheduling": self.scheduling(without=("decode_only",))},
                          "decode": {"scheduling": {"type": "decode_only", "max_num_seqs": 16}}}
            del e["scheduling"]
            if self.chance(0.5):
                e["pools"]["prefill"]["parallel"] = {"dp": 2, "tp": self.one_of(1, 2), "ep": 2}
            if self.chance(0.5):
                e["kv_transfer"] = {"sends": self.one_of("whole", "chunk", "layer"), "first_token": self.one_of("prefill", "admission", "decode")}
        if parallel["pp"] == 1 and self.chance(0.15):
            self.put_experts_apart(e)
        elif parallel["tp"] > 1 and self.chance(0.1):
            parallel["dcp"] = parallel["tp"]
            if self.chance(0.5):
                parallel["dcp_merge"] = self.one_of("reduce_scatter", "all_to_all")
        if self.chance(0.1):
            e["charges"] = {"request_routing": self.time(0.01, 5)}
        if self.chance(0.1):
            e["two_term_step"] = {"a": "0.2 us", "b": self.one_of("0 s", "0.1 us"), "c": self.time(0.01, 20)}
        return e

    def put_experts_apart(self, e):
        """Experts on GPUs of their own (AFD), and mostly what goes with that."""
        experts = self.one_of(1, 2, 4)
        e["parallel"] |= {"ep": experts, "ffn_gpus": experts, "micro_batches": self.one_of(1, 2, 3)}
        e["cluster"] = self.cluster(16)
        e["instances"] = 1
        e["placement"]["replication"] = min(e["placement"]["replication"], experts)
        if self.chance(0.05):
            return
        for key in ("expert_memory", "failures"):
            e.pop(key, None)
        if "overlap" in e:
            e["overlap"] = "shared_expert"
        e["dispatch"] = {phase: self.one_of("all_to_all", "low_latency", "ids_all_gather", "ids_all_gather")
                         for phase in e["dispatch"]}


class Broken(Exception):
    """A law that does not hold."""


def demand(holds, law):
    if not holds:
        raise Broken(law)


SHARES = ("share", "utilization", "attainment", "hit_rate", "balancedness", "occupancy", "coverage")


def check_numbers(value, path=""):
    """No number is below zero where it counts or times something, and no share is above 1."""
    if isinstance(value, dict):
        for key, inner in value.items():
            if key != "config":
                check_numbers(inner, f"{path}/{key}")
    elif isinstance(value, list):
        for i, inner in enumerate(value):
            check_numbers(inner, f"{path}/{i}")
    elif isinstance(value, (int, float)) and not isinstance(value, bool):
        demand(math.isfinite(value), f"{path} is {value}")
        name = next((part for part in reversed(path.split("/")) if not part.isdigit()), "")
        if name in ("mfu", "mbu") or any(name.endswith(share) or name.startswith("share_") for share in SHARES):
            demand(-1e-9 <= value <= 1 + 1e-9, f"{path} is {value}: a share")
        elif path.startswith("/metrics/"):
            demand(value >= 0, f"{path} is {value}: below zero")


def check_report(config, report, requests, steps):
    metrics = report["metrics"]
    check_numbers(report)
    for latency in ("ttft", "tpot", "itl", "e2el"):
        ranks = [metrics.get(f"p{p}_{latency}_ms") for p in (50, 90, 95, 99)]
        ranks = [r for r in ranks if r is not None]
        demand(ranks == sorted(ranks), f"percentiles of {latency} do not ascend: {ranks}")

    demand(len(requests) == config["workload"]["requests"], f"{len(requests)} rows of requests")
    states = {row["state"] for row in requests}
    finished = [row for row in requests if row["state"] == "finished"]
    number = lambda row, key: float(row[key] or 0)
    for row in requests:
        generated, asked = int(row["generated_tokens"] or 0), int(row["output_tokens"])
        demand(generated <= asked, f"request {row['request']} has {generated} of {asked} tokens")
        if row["state"] == "finished":
            demand(generated == asked, f"request {row['request']} finished with {generated} of {asked} tokens")
            demand(number(row, "ttft_ms") <= number(row, "e2el_ms") * (1 + 1e-9), f"request {row['request']}: TTFT above E2EL")
    if config["measurement"]["warmup"] == 0:
        demand(metrics["completed"] == len(finished), f"completed {metrics['completed']}, rows {len(finished)}")
    demand(metrics["completed"] <= len(finished), f"completed {metrics['completed']}, rows {len(finished)}")

    # The window lies in the run, and what left in it is no more than what there was.
    end = max([number(row, "arrival_s") + number(row, "e2el_ms") / 1e3 for row in requests] +
              [float(step["start_s"]) + float(step["step_ms"]) / 1e3 for step in steps], default=0)
    # A client whose patience ended left behind its last step.
    waits = [config["workload"].get(key, "0 ms") for key in ("timeout", "ttft_timeout")]
    patience = max(float(wait.split()[0]) for wait in waits) / 1e3
    duration = metrics["duration_s"]
    demand(0 <= duration <= (end + patience) * (1 + 1e-6) + 1e-6, f"a window of {duration} s in a run of {end} s")
    outputs = sum(int(row["generated_tokens"] or 0) for row in requests)
    prompts = sum(int(row["prompt_tokens"]) for row in requests)
    for key, most in (("output_throughput", outputs), ("total_token_throughput", prompts + outputs),
                      ("request_throughput", len(requests))):
        counted = metrics[key] * duration
        demand(counted <= most * (1 + 1e-6) + 1e-6, f"{key} counts {counted}, there were {most}")

    # Every token that left was computed, once where nothing was lost.
    if "pools" not in config and config.get("fidelity") != "sampled":
        prefilled = sum(int(step["prefill_tokens"]) for step in steps)
        decoded = sum(int(step["decode_tokens"]) for step in steps)
        need = sum(int(row["prompt_tokens"]) - int(row["cached_tokens"] or 0) for row in finished)
        demand("speculative" in config or "prefix_caching" in str(config) or prefilled + decoded >= need, "tokens lost")
        calm = states <= {"finished", "rejected"} and not any(number(row, "preemptions") for row in requests)
        if calm and "failures" not in config and config["scheduling"]["type"] != "decode_only":
            demand(prefilled == need, f"{prefilled} prompt tokens computed, {need} of those finished")
            want = sum(int(row["output_tokens"]) - 1 for row in finished)
            if "speculative" not in config:
                demand(decoded == want, f"{decoded} tokens decoded, {want} of those finished")
    if config["parallel"]["pp"] == 1 and "pools" not in config:
        ended = {}
        for step in steps:
            instance, start = step.get("instance", "0"), float(step["start_s"])
            demand(start >= ended.get(instance, 0) - 2e-9, f"step {step['step']} begins before the last one ended")
            ended[instance] = start + float(step["step_ms"]) / 1e3 - 1e-6  # as printed


def rows(file):
    with open(file, newline="") as stream:
        return list(csv.DictReader(stream))


def simulate(moesim, *arguments):
    environment = {**os.environ, "ASAN_OPTIONS": "detect_leaks=1:allocator_may_return_null=0", "UBSAN_OPTIONS": "print_stacktrace=1"}
    return subprocess.run([moesim, "run", *map(str, arguments)], capture_output=True, text=True, errors="replace",
                          timeout=TIMEOUT, env=environment)


def refused(done, config):
    """Whether it was, in one line. Any other end but 0 breaks a law."""
    said = [line for line in done.stderr.strip().splitlines() if not line.startswith(("info:", "warning:"))]
    if done.returncode == 0:
        return False
    demand(done.returncode == 2, f"exit {done.returncode}: {done.stderr.strip()[-3000:]}")
    demand(len(said) == 1 and not done.stdout, f"refused in {len(said)} lines: {done.stderr.strip()[-500:]}")
    return True


def try_world(moesim, names, seed):
    """Runs one; "refused", or "ran". Raises Broken."""
    config = World(seed, names).experiment()
    file = lambda ending: found / f"{seed}.{ending}"
    files = [file(ending) for ending in ("json", "again.json", "requests.csv", "steps.csv")]
    files[0].write_text(json.dumps(config, indent=1))
    try:
        done = simulate(moesim, files[0], "--json", "--threads", 1, "--requests", files[2], "--steps", files[3])
        outcome = "ran"
        if refused(done, config):
            outcome = done.stderr.strip().splitlines()[-1]
        else:
            report = json.loads(done.stdout)
            check_report(config, report, rows(files[2]), rows(files[3]))
            files[1].write_text(json.dumps(report["context"]["config"]))
            again = simulate(moesim, files[1], "--json", "--threads", 2)
            demand(again.returncode == 0, f"its resolved config: exit {again.returncode}: {again.stderr.strip()[-2000:]}")
            demand(again.stdout == done.stdout, "its resolved config gives other bytes with two threads")
    except subprocess.TimeoutExpired:
        raise Broken(f"more than {TIMEOUT} s") from None
    for made in files:
        made.unlink(missing_ok=True)
    return outcome


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("moesim")
    parser.add_argument("--seconds", type=float, help="begin no more experiments after so many")
    asked = parser.parse_args()
    moesim = str(pathlib.Path(asked.moesim).resolve())
    first = int(os.environ.get("MOESIM_SEED", 1))
    worlds = int(os.environ.get("MOESIM_WORLDS", 1 << 40 if asked.seconds else 40))
    found.mkdir(parents=True, exist_ok=True)
    names, began = policies(moesim), time.monotonic()
    ran, refusals, broken = 0, {}, []

    def attempt(seed):
        nonlocal ran
        if asked.seconds and time.monotonic() - began > asked.seconds:
            return False
        try:
            outcome = try_world(moesim, names, seed)
            if outcome == "ran":
                ran += 1
            else:
                reason = outcome.split(".json:", 1)[-1][:90]
                refusals[reason] = refusals.get(reason, 0) + 1
        except Exception as error:  # a law, or a report that is not one
            broken.append(seed)
            print(f"seed {seed}: {type(error).__name__}: {error}\n  again: MOESIM_SEED={seed} MOESIM_WORLDS=1 "
                  f"tests/experiments.py {asked.moesim}; its config: build/experiments/{seed}.json", flush=True)
        return True

    jobs = os.cpu_count() or 1
    with ThreadPoolExecutor(jobs) as pool:
        seed = first
        while seed < first + worlds:
            batch = range(seed, min(seed + 8 * jobs, first + worlds))
            if not all(list(pool.map(attempt, batch))):
                break
            seed = batch[-1] + 1
    for reason, times in sorted(refusals.items(), key=lambda item: -item[1])[:12]:
        print(f"refused {times} x: {reason}")
    total = ran + sum(refusals.values()) + len(broken)
    print(f"{total} experiments from seed {first} on: {ran} ran, {sum(refusals.values())} were refused, {len(broken)} broke "
          f"a law{': seeds ' + ' '.join(map(str, broken)) if broken else ''}; {time.monotonic() - began:.0f} s")
    return 1 if broken or (total >= 20 and ran < total / 2) else 0


sys.exit(main())
