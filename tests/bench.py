#!/usr/bin/env python3
"""Does the loop close: is what a benchmark measured simulated under its own load, and does --anchor make of it what corrects
the predictions?

  tests/bench.py MOESIM

The measured runs are moesim's own, request by request (run --requests), written as each benchmark writes them, by its
definitions: every figure must come back. A system that is 1.3 times as slow must be found to be so."""
import csv, json, math, pathlib, statistics, subprocess, sys, tempfile

root = pathlib.Path(__file__).resolve().parents[1]
moesim = pathlib.Path(sys.argv[1]).resolve()
failures = []
PROMPT, OUTPUT = 500, 60
# Long enough for a steady window, and so short that ramp and drain are most of it; in flight, requests/s, requests.
LOADS = {"closed loop": (16, None, 120), "short closed loop": (32, None, 48), "rate": (None, 20.0, 200),
         "rate with a limit": (4, 20.0, 100)}
SLOWER = 1.3


def check(holds, what):
    if not holds:
        failures.append(what)


def run(*arguments):
    return subprocess.run([moesim, *map(str, arguments)], capture_output=True, text=True)


def measured(work, experiment, load, rescaled=False):
    """What became of every request of a run; rescaled: at a rate, with gaps as vLLM's client scales them."""
    in_flight, rate, requests = load
    experiment = json.loads(json.dumps(experiment))
    arrivals = {"type": "closed_loop", "concurrency": in_flight}
    if rate:
        arrivals = {"type": "poisson", "rate": f"{rate} /s", **({"max_concurrency": in_flight} if in_flight else {}),
                    **({"rescaled": True} if rescaled else {})}
    experiment["workload"].update(arrivals=arrivals, requests=requests,
                                  lengths={"type": "fixed", "prompt": PROMPT, "output": OUTPUT})
    (work / "loaded.json").write_text(json.dumps(experiment))
    done = run("run", work / "loaded.json", "--requests", work / "requests.csv")
    check(done.returncode == 0, f"{load}: {done.stderr}")
    with open(work / "requests.csv") as file:
        return [row for row in csv.DictReader(file) if row["state"] == "finished"]


def percentile(values, share):
    """As numpy: straight between the two around it."""
    values, place = sorted(values), (len(values) - 1) * share
    low = math.floor(place)
    return values[low] + (values[min(low + 1, len(values) - 1)] - values[low]) * (place - low)


def figures(rows):
    """By vllm/benchmarks/serve.py: all requests, from the first one sent to the last token."""
    sent = [float(row["arrival_s"]) for row in rows]
    took = {name: [float(row[f"{name}_ms"]) for row in rows] for name in ("ttft", "tpot", "e2el")}
    seconds = max(a + e / 1e3 for a, e in zip(sent, took["e2el"])) - min(sent)
    prompts, outputs = (sum(int(row[key]) for row in rows) for key in ("prompt_tokens", "output_tokens"))
    result = {"request_throughput": len(rows) / seconds, "output_throughput": outputs / seconds,
              "total_token_throughput": (prompts + outputs) / seconds}
    for name, values in took.items():
        result[f"mean_{name}_ms"] = statistics.mean(values)
        result[f"median_{name}_ms"] = percentile(values, .5)
        result[f"std_{name}_ms"] = statistics.pstdev(values)
        for percent in (25, 75, 90, 99):
            result[f"p{percent}_{name}_ms"] = percentile(values, percent / 100)
    return result


def vllm(rows, load):
    """What `vllm bench serve --save-result` writes."""
    in_flight, rate, requests = load
    return {"date": "20260101-000000", "backend": "openai", "model_id": "x", "num_prompts": requests,
            "request_rate": rate or "inf", "burstiness": 1.0, "max_concurrency": in_flight, "completed": len(rows), "failed": 0,
            "total_input_tokens": PROMPT * len(rows), "total_output_tokens": OUTPUT * len(rows), **figures(rows)}


def sglang(rows, load):
    """A line of SGLang's bench_serving."""
    in_flight, rate, _ = load
    names = {f"{what}_e2el_ms": f"{what}_e2e_latency_ms" for what in ("mean", "median", "p90", "p99")}
    names["total_token_throughput"] = "total_throughput"
    return {"backend": "sglang", "dataset_name": "random", "request_rate": rate or float("inf"), "max_concurrency": in_flight,
            "completed": len(rows), "total_input_tokens": PROMPT * len(rows), "total_output_tokens": OUTPUT * len(rows),
            **{names.get(key, key): value for key, value in figures(rows).items()}}


def genai_perf(rows, load, config=None):
    in_flight, rate, requests = load
    of = figures(rows)

    def latency(name):
        return {"unit": "ms", **{key: of[f"{ours}_{name}_ms"] for key, ours in
                                 (("avg", "mean"), ("std", "std"), ("p25", "p25"), ("p50", "median"), ("p99", "p99"))}}
    return {"time_to_first_token": latency("ttft"), "inter_token_latency": latency("tpot"), "request_latency": latency("e2el"),
            "request_throughput": {"unit": "requests/sec", "avg": of["request_throughput"]},
            "output_token_throughput": {"unit": "tokens/sec", "avg": of["output_throughput"]},
            "input_sequence_length": {"unit": "tokens", "avg": PROMPT}, "output_sequence_length": {"unit": "tokens", "avg": OUTPUT},
            "request_count": {"unit": "count", "avg": len(rows)},
            "input_config": config or {"loadgen": {"concurrency": in_flight, "request_rate": rate, "request_rate_mode": "poisson"}}}


def aiperf(rows, load):
    in_flight, rate, requests = load
    phase = {"name": "profiling", "type": "poisson" if rate else "concurrency", "requests": requests}
    phase.update({key: value for key, value in (("rate", rate), ("concurrency", in_flight)) if value})
    return genai_perf(rows, load, {"phases": [{"name": "warmup", "type": "concurrency", "concurrency": 1}, phase]})


FORMS = {"vllm.json": vllm, "sglang.jsonl": sglang, "genai_perf.json": genai_perf, "aiperf.json": aiperf}


def against_itself(work, config, experiment):
    for name, load in LOADS.items():
        by_client = {rescaled: measured(work, experiment, load, rescaled) for rescaled in {False, bool(load[1])}}
        for form, write in FORMS.items():
            rows = by_client[write is vllm and bool(load[1])]
            # AIPerf's schedule waits for a place, the run's does not.
            if load[0] and load[1] and write in (genai_perf, aiperf):
                continue
            (work / form).write_text(json.dumps(write(rows, load)) + "\n")
            done = run("bench", work / form, "--config", config, "--json")
            compared = json.loads(done.stdout)[0]["metrics"] if done.returncode == 0 else {}
            check(len(compared) >= 15, f"{name}, {form}: {len(compared)} figures: {done.stderr}")
            for metric, row in compared.items():
                check(abs(row["error_pct"]) < 1e-3, f"{name}, {form}: {metric} is {row['error_pct']} % off")
            if form != "vllm.json":
                continue
            done = run("bench", work / form, "--config", config, "--anchor", work / "one.json")
            anchor = json.loads((work / "one.json").read_text()) if done.returncode == 0 else {}
            for figure in ("tpot", "ttft"):
                factor = anchor.get(figure, {}).get("factor", 0)
                check(abs(factor - 1) < 1e-5, f"{name}: the factor of {figure} is {factor}: {done.stderr}")


def slower(factor):
    """An anchor that makes all steps so many times as long."""
    fit = {"factor": factor, "center": {"concurrency": 1, "prompt": 1, "output": 1}, "slope": {}, "runs": 1, "leave_one_out": 0}
    return {"deployment": "a slower system", "tpot": fit}


def anchors(work, config, experiment):
    rates = [(None, 10.0, 200), (None, 40.0, 400), (None, 80.0, 600)]
    loops = [(8, None, 64), (64, None, 256)]
    files = {}
    for load in rates + loops:
        rows = measured(work, {**experiment, "anchor": slower(SLOWER)}, load, rescaled=True)
        files[load] = work / f"{len(files)}.json"
        files[load].write_text(json.dumps(vllm(rows, load)))
    for chosen in [[load] for load in rates] + [rates, loops + rates[2:], loops + rates]:
        done = run("bench", *(files[load] for load in chosen), "--config", config, "--anchor", work / "anchor.json")
        anchor = json.loads((work / "anchor.json").read_text()) if done.returncode == 0 else {"tpot": {}}
        factor = anchor["tpot"].get("factor", 0)
        check(abs(factor / SLOWER - 1) < .01, f"{chosen}: the factor is {factor}, not {SLOWER}: {done.stderr}")
        if len(chosen) > 1:
            for figure in ("tpot", "ttft"):
                left_out = anchor.get(figure, {}).get("leave_one_out", 1)
                check(left_out < (.02 if figure == "tpot" else .1), f"{chosen}: left out, {figure} is {left_out} off")
        anchored = work / "anchored.json"
        anchored.write_text(json.dumps({**experiment, "anchor": "anchor.json"}))
        for load in chosen:
            done = run("bench", files[load], "--config", anchored, "--json")
            compared = json.loads(done.stdout)[0]["metrics"] if done.returncode == 0 else {}
            # Near saturation TTFT is off by several times the error of a factor that other runs had a part in.
            alone = ("median_ttft_ms",) if len(chosen) == 1 else ()
            for metric in ("median_tpot_ms", "mean_tpot_ms", "output_throughput", *alone):
                error = compared.get(metric, {}).get("error_pct", 100)
                check(abs(error) < (2 if alone else 3),
                      f"{chosen}: with the anchor {metric} of {load} is {error} % off: {done.stderr}")

    # Of another model or GPU it is refused, of another layout it is said.
    text = run("run", work / "anchored.json").stdout
    check("leave-one-out error of TPOT" in text and ", of TTFT" in text, f"run does not name the errors: {text}")
    for pointer, value, words in (("/model", root / "models/zoo/olmoe_1b_7b.json", 'the model "Qwen3-30B-A3B"'),
                                  ("/cluster", root / "hardware/clusters/h200x64.json", "the GPU")):
        done = run("run", work / "anchored.json", "--set", f"{pointer}={value}")
        check(done.returncode == 2 and words in done.stderr and "calibrate" in done.stderr,
              f"{pointer} of another: exit {done.returncode}: {done.stderr}")
    done = run("run", work / "anchored.json", "--set", '/parallel={"tp":4}')
    check(done.returncode == 0 and "measured at tp2 ep2, not at tp4 ep4" in done.stderr, f"another layout: {done.stderr}")


SERVED = {"id": "a", "category": "e2e", "gpu": "B200", "n_gpu": "4", "model": "MiniMax-M2.5", "op": "online serving vllm 0.19.0",
          "precision": "fp8", "tp": "4", "ep": "4", "dp": "1", "concurrency": "16", "isl": "1024", "osl": "1024", "metric": "TPOT",
          "value": "10.6"}
# A field of a measured run, what stands there, and what the refusal says of it.
SAY_NOTHING = [("concurrency", "0", "requests in flight"), ("concurrency", "", "requests in flight"), ("concurrency", "16.5", "16.5"),
               ("osl", "1", "no TPOT"), ("osl", "0", "at least 1 token"), ("isl", "0", "at least 1 token"), ("tp", "0", "tp is 0"),
               ("tp", None, "tp is 0 or missing"), ("tp", "3", "does not divide"), ("n_gpu", "0", "take 4"),
               ("gpu", "RTX9999", "moesim list gpus"), ("metric", "ITL", "TPOT and TTFT"), ("precision", "w4a8", "nvfp4 and int4"),
               ("value", "nan", '"nan"'), ("value", "10,618", '"10,618"'), ("value", "-1", '"-1"'), ("value", "0", "more than 0"),
               ("value", "0.0106", "ms are expected"), ("value", "1e400", '"1e400"'), ("isl", "1e12", "at most 10000000"),
               ("n_gpu", "4.5", "whole number"), ("op", "online serving vllm 0.19.0, disaggregated", "is of pools")]


def refusals(work):
    """Measured runs that say nothing are refused with their line, and no anchor is written."""
    file, anchor = work / "runs.csv", work / "runs_anchor.json"

    def served(row):
        with open(file, "w", newline="") as out:
            rows = csv.DictWriter(out, row)
            rows.writeheader(), rows.writerow(row)
        return run("bench", "--serving", file, "--anchor", anchor)

    for key, value, why in SAY_NOTHING:
        row = {of: said for of, said in SERVED.items() if of != key or value is not None}
        done = served({**row, **({key: value} if value is not None else {})})
        check(done.returncode == 2 and done.stderr.count("\n") == 1 and "runs.csv:2: " in done.stderr and why in done.stderr,
              f"--serving, {key} {value}: exit {done.returncode}: {done.stderr}")
        check(not anchor.exists(), f"--serving, {key} {value}: wrote an anchor")
    for key, value in (("precision", "FP8"), ("metric", "tpot"), ("gpu", "b200")):
        done = served({**SERVED, key: value})
        check(done.returncode == 0 and anchor.exists(), f"--serving, {key} {value}: exit {done.returncode}: {done.stderr}")
    # A model's id and other letters are the same model, to which the same rules of its family apply.
    factors = [served({**SERVED, "model": name}).stdout for name in ("MiniMax-M2.5", "minimax-m2.5", "MiniMaxAI/MiniMax-M2.5")]
    check(factors[0] and len(set(factors)) == 1, f"--serving, one model spelled three ways: {factors}")


def main():
    with tempfile.TemporaryDirectory(prefix="moesim-bench.") as folder:
        work = pathlib.Path(folder)
        experiment = json.loads((root / "tests/tiny.json").read_text())
        experiment.update(cluster=str(root / "hardware/clusters/h100x8.json"), model=str(root / "models/zoo/qwen3_30b_a3b.json"),
                          parallel={"tp": 2}, scheduling={"type": "chunked_prefill", "max_num_batched_tokens": 2048,
                                                          "max_num_seqs": 256},
                          placement="linear", fidelity="sampled")
        experiment["workload"]["gating"] = {"type": "uniform"}
        config = work / "mine.json"
        config.write_text(json.dumps(experiment))  # its own load is another
        against_itself(work, config, experiment)
        anchors(work, config, experiment)
        refusals(work)

        file = work / "vllm.json"
        file.write_text(json.dumps({**vllm(measured(work, experiment, LOADS["closed loop"]), LOADS["closed loop"]),
                                    "num_prompts": 130, "failed": 10}))
        text = run("bench", file, "--config", config, "--anchor", work / "anchor.json").stdout
        check("simulated: 16 in flight, 120 requests, each of 500 and 60 tokens" in text, f"the load is not said: {text}")
        check("10 requests failed" in text, f"failures are not said: {text}")
        file.write_text("[1]")
        done = run("bench", file, "--config", config)
        check(done.returncode == 2 and len(done.stderr.splitlines()) == 1, f"no object: exit {done.returncode}: {done.stderr}")
    print("\n".join(failures) if failures else "the loop closes: vllm bench serve, SGLang's bench_serving, genai-perf, AIPerf")
    return 1 if failures else 0


sys.exit(main())
