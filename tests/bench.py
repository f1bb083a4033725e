#!/usr/bin/env python3
"""Does the loop close: is what a benchmark measured simulated under its own load, and does --anchor make of it what corrects
the predictions?

  tests/bench.py MOESIM

The measured figures are predictions of moesim itself, times a factor: that factor must come back."""
import json, pathlib, subprocess, sys, tempfile

root = pathlib.Path(__file__).resolve().parents[1]
moesim = pathlib.Path(sys.argv[1]).resolve()
failures = []
LOADS = ((4, 64, 8, 16), (8, 96, 12, 24), (16, 128, 16, 48))  # in flight, prompt, output, requests


def check(holds, what):
    if not holds:
        failures.append(what)


def run(*arguments):
    return subprocess.run([moesim, *map(str, arguments)], capture_output=True, text=True)


def predicted(work, experiment, load):
    in_flight, prompt, output, requests = load
    experiment = json.loads(json.dumps(experiment))
    experiment["workload"].update(arrivals={"type": "closed_loop", "concurrency": in_flight}, requests=requests,
                                  lengths={"type": "fixed", "prompt": prompt, "output": output})
    (work / "loaded.json").write_text(json.dumps(experiment))
    return json.loads(run("run", work / "loaded.json", "--json").stdout)["metrics"]


def vllm(metrics, load, factor):
    """What `vllm bench serve --save-result` writes."""
    in_flight, prompt, output, requests = load
    figures = {k: v * factor for k, v in metrics.items() if k.endswith(("_ms", "_throughput")) and v is not None}
    return {"date": "20260101-000000", "backend": "openai", "model_id": "x", "num_prompts": requests, "request_rate": "inf",
            "burstiness": 1.0, "max_concurrency": in_flight, "completed": requests, "total_input_tokens": prompt * requests,
            "total_output_tokens": output * requests, **figures}


def sglang(metrics, load, factor):
    """A line of SGLang's bench_serving."""
    in_flight, prompt, output, requests = load
    names = {"mean_e2el_ms": "mean_e2e_latency_ms", "median_e2el_ms": "median_e2e_latency_ms",
             "total_token_throughput": "total_throughput"}
    figures = {names.get(k, k): v * factor for k, v in metrics.items() if k.endswith(("_ms", "_throughput")) and v is not None}
    return {"backend": "sglang", "dataset_name": "random", "request_rate": float("inf"), "max_concurrency": in_flight,
            "completed": requests, "total_input_tokens": prompt * requests, "total_output_tokens": output * requests, **figures}


def genai_perf(metrics, load, factor):
    in_flight, prompt, output, requests = load

    def statistics(name, scale=1.0):
        return {"unit": "ms", **{key: metrics[f"{ours}_{name}_ms"] * factor * scale
                                 for key, ours in (("avg", "mean"), ("p50", "median"), ("p99", "p99"))}}
    return {"time_to_first_token": statistics("ttft"), "inter_token_latency": statistics("tpot"),
            "request_latency": statistics("e2el"), "request_throughput": {"unit": "requests/sec", "avg": 1.0},
            "input_sequence_length": {"unit": "tokens", "avg": prompt}, "output_sequence_length": {"unit": "tokens", "avg": output},
            "request_count": {"unit": "count", "avg": requests}, "input_config": {"loadgen": {"concurrency": in_flight}}}


def main():
    with tempfile.TemporaryDirectory(prefix="moesim-bench.") as folder:
        work = pathlib.Path(folder)
        experiment = json.loads((root / "tests/tiny.json").read_text())
        for key, at in (("cluster", "hardware/clusters/h100x8.json"), ("model", "models/zoo/olmoe_1b_7b.json")):
            experiment[key] = str(root / at)
        experiment["scheduling"] = {"type": "chunked_prefill", "max_num_batched_tokens": 2048, "max_num_seqs": 64}
        config = work / "mine.json"
        config.write_text(json.dumps(experiment))  # its own load is another
        metrics = [predicted(work, experiment, load) for load in LOADS]

        file = work / "vllm.json"
        file.write_text(json.dumps(vllm(metrics[0], LOADS[0], 1.1)))
        done = run("bench", file, "--config", config, "--json")
        rows = json.loads(done.stdout)[0]["metrics"] if done.returncode == 0 else {}
        check({"median_ttft_ms", "p99_tpot_ms", "mean_itl_ms", "output_throughput"} <= rows.keys(), f"vllm: {done.stderr}")
        check(all(abs(row["error_pct"] + 100 / 11) < 1e-6 for row in rows.values()), f"vllm: errors are not -9.09 %: {rows}")
        text = run("bench", file, "--config", config).stdout
        check("simulated: 4 in flight, 16 requests, each of 64 and 8 tokens" in text, f"the load is not said: {text}")

        file = work / "sglang.jsonl"
        file.write_text("".join(json.dumps(sglang(m, load, 1.1)) + "\n" for m, load in zip(metrics, LOADS)))
        done = run("bench", file, "--config", config, "--json")
        runs = json.loads(done.stdout) if done.returncode == 0 else []
        check(len(runs) == 3, f"sglang: {len(runs)} runs: {done.stderr}")
        check(all("mean_e2el_ms" in r["metrics"] and abs(row["error_pct"] + 100 / 11) < 1e-6 for r in runs
                  for row in r["metrics"].values()), f"sglang: {runs}")

        file = work / "profile_export_genai_perf.json"
        file.write_text(json.dumps(genai_perf(metrics[1], LOADS[1], 1.1)))
        done = run("bench", file, "--config", config, "--json")
        rows = json.loads(done.stdout)[0]["metrics"] if done.returncode == 0 else {}
        check({"median_ttft_ms", "p99_tpot_ms", "mean_e2el_ms"} <= rows.keys(), f"genai-perf: {done.stderr}")
        check(all(abs(rows[name]["error_pct"] + 100 / 11) < 1e-6 for name in rows if name.endswith("_ms")), f"genai-perf: {rows}")

        # Three files in, one correction out: the factor that was measured, and a run that has it.
        files = [work / f"r{i}.json" for i in range(3)]
        for path, m, load in zip(files, metrics, LOADS):
            path.write_text(json.dumps(vllm(m, load, 1.25)))
        anchor = work / "anchor.json"
        done = run("bench", *files, "--config", config, "--anchor", anchor)
        check(done.returncode == 0, f"calibrate: {done.stderr}")
        fitted = json.loads(anchor.read_text()) if anchor.exists() else {"tpot": {}, "ttft": {}}
        for figure in ("tpot", "ttft"):
            check(abs(fitted[figure].get("factor", 0) - 1.25) < 1e-9 and fitted[figure].get("runs") == 3, f"calibrate: {fitted}")
        check("OLMoE" in fitted.get("deployment", ""), f"the deployment is not named: {fitted}")
        after = predicted(work, {**experiment, "anchor": str(anchor)}, LOADS[1])
        ratio = after["median_tpot_ms"] / metrics[1]["median_tpot_ms"]
        check(abs(ratio - 1.25) < 0.02, f"corrected, TPOT is {ratio:.3f} times what it was, not 1.25")

        for what, content, words in (("of something else", '{"mean_latency": 3}', "vllm bench serve"),
                                     ("without lengths", '{"median_tpot_ms": 3}', "cannot be simulated"),
                                     ("no object", "[1]", "not a JSON object")):
            file = work / "other.json"
            file.write_text(content)
            done = run("bench", file, "--config", config)
            check(done.returncode == 2 and words in done.stderr and len(done.stderr.splitlines()) == 1,
                  f"a file {what}: exit {done.returncode}: {done.stderr}")
    print("\n".join(failures) if failures else "the loop closes: vllm bench serve, SGLang's bench_serving, genai-perf")
    return 1 if failures else 0


sys.exit(main())
