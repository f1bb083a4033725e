#!/usr/bin/env python3
"""Does tune find what a whole sweep finds, on small problems drawn at random, or say that it might not?

  tests/tune_random.py MOESIM [PROBLEMS] [FIRST_SEED]

Of each problem every point is run by `moesim sweep`. tune may answer worse only where it says that points were taken to
miss the SLO, and never with --sure."""
import json, os, pathlib, random, sqlite3, subprocess, sys, tempfile

root = pathlib.Path(__file__).resolve().parents[1]


def problem(seed):
    """A sweep of some 48 points; schedulers, lengths, limits and loads that differ by orders of magnitude."""
    draw = random.Random(seed)
    prompt, output = draw.choice([4, 16, 40]), draw.choice([1, 4, 12])
    shapes = [{"dp": 2, "ep": 2}, {"dp": 4, "ep": 4}, {"dp": 8, "ep": 8}, {"dp": 4, "tp": 2, "ep": 8}]
    first = draw.choice([20, 60, 200, 700])
    slo = {}
    if draw.random() < .8 or output == 1:
        slo["ttft"] = f"{draw.choice([1.5, 4, 8, 20])} ms"
    if output > 1 and (not slo or draw.random() < .8):
        slo["tpot"] = f"{draw.choice([1.2, 1.6, 2.5, 4])} ms"
    lengths = draw.choice([{"type": "fixed", "prompt": prompt, "output": output},
                           {"type": "uniform", "prompt": prompt * 2, "output": output * 2, "least": 0.5}])
    return {"base": str(root / "tests/tiny.json"),
            "set": {"/slo": slo, "/workload/requests": draw.choice([60, 150, 300]), "/workload/lengths": lengths,
                    "/workload/arrivals": {"type": "poisson", "rate": "1 /s"}, "/placement/type": "eplb",
                    "/scheduling/type": draw.choice(["prefill_first", "prefill_first", "chunked_prefill"]),
                    "/scheduling/max_num_batched_tokens": draw.choice([32, 64, 256]),
                    "/workload/gating/requests": 32, "/workload/gating/prompt_rows": 8, "/workload/gating/decode_rows": 8},
            "axes": {"/scheduling/max_num_seqs": draw.sample([2, 4, 8, 16], 2),
                     "/token_routing/decode": draw.sample(["even", "metro", "static_primary"], 2),
                     "/parallel": draw.sample(shapes, 2),
                     "/workload/arrivals/rate": [f"{round(first * 2.3 ** i)} /s" for i in range(6)]}}


def moesim_run(*command):
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode not in (0, 3):
        sys.exit(f"FAILED: {' '.join(command)}: exit {done.returncode}: {done.stderr}")
    return done


def whole_sweep(moesim, file):
    """The most requests/s of a point that meets the SLO, 0 if none does; and the number of points."""
    store = file.with_suffix(".sqlite")
    moesim_run(moesim, "sweep", str(file), "-o", str(store))
    best, points = 0, 0
    for config, report in sqlite3.connect(store).execute("SELECT config, report FROM points WHERE status = 'done'"):
        rate = float(json.loads(config)["workload"]["arrivals"]["rate"].removesuffix(" /s"))
        report, points = json.loads(report), points + 1
        metrics = report["metrics"]
        # A run that is overloaded or too short is no answer.
        steady = report["measurement"]["state"] == "stable"
        if steady and metrics["slo_attainment"] is not None and metrics["slo_attainment"] >= .9:
            best = max(best, min(metrics["request_throughput"], rate) * metrics["slo_attainment"])
    return best, points


def main():
    moesim, problems = os.path.abspath(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 40
    first = int(sys.argv[3]) if len(sys.argv) > 3 else 0
    found, said, none, runs, sure_runs, all_points = 0, [], 0, 0, 0, 0
    with tempfile.TemporaryDirectory() as folder:
        for seed in range(first, first + problems):
            file = pathlib.Path(folder) / f"{seed}.json"
            file.write_text(json.dumps(problem(seed)))
            best, points = whole_sweep(moesim, file)
            answers = []
            for more in ([], ["--sure"]):
                answer = json.loads(moesim_run(moesim, "tune", str(file), "--json", *more).stdout)
                answers.append(answer)
                # Of points that tie, within 1 %, the first has the most left to the limits.
                first_of_ties = answer.get("goodput", 0)
                goodput = max([first_of_ties] + [other["goodput"] for other in answer["runners_up"]])
                if min(goodput, first_of_ties / .99) < best * (1 - 1e-12) and (more or answer["taken_to_miss"] == 0):
                    sys.exit(f"FAILED: seed {seed}{' --sure' if more else ''}: {goodput} of {best} requests/s, "
                             f"and it says that no point is better")
            if answers[0].get("goodput", 0) >= best * .99:
                found += 1
            else:
                said.append((seed, answers[0].get("goodput", 0), best))
            none += best == 0
            runs, sure_runs, all_points = runs + answers[0]["runs"], sure_runs + answers[1]["runs"], all_points + points
    print(f"{found} of {problems} found ({none} of them have none in the grid), {len(said)} said that they might not be: {said}")
    print(f"{runs} runs, {sure_runs} with --sure, of {all_points} points")
    if found < problems * 9 // 10:
        sys.exit("FAILED: fewer than nine of ten are found without --sure")


main()
