#!/usr/bin/env python3
"""Does every command line in every README and other page work as it is typed, for somebody who has nothing but the repository?

  tests/readme.py MOESIM [--to-the-end]

Runs each line of an indented block that begins with `moesim`, in order, in a copy of what the lines may read, with no
../shared beside it; each must end with 0. A line that stands on several pages runs once. A line below that takes long, and
whose result no other line reads, is stopped after a while as by Ctrl-C, and by a second one if points in flight take long.
A study must say that the same command goes on, or what the second stops. Sweeps run the first two of their seeds.
`--to-the-end` (.ci/nightly) stops none and runs all seeds. A line that needs ../shared is refused in one line that names
it, and only the READMEs below may have such; a line that draws a page is named as not run where charts could not be
fetched. Other programs that READMEs name must be there to be run."""
import json, os, pathlib, re, resource, shutil, signal, stat, subprocess, sys, tempfile, time

root = pathlib.Path(__file__).resolve().parents[1]
COPIED = ["configs", "hardware", "models", "traces/samples"]
RECORDED = {"hardware/README.md", "sim/engines/README.md", "hardware/profiles/README.md",
            "sim/placement/README.md", "sim/rebalancing/README.md", "sim/token_routing/README.md", "tools/lab/study/regimes.md", "tools/docs/paper.md",
            "tools/docs/questions.md",
            "traces/README.md"}
# Other tests see the ends of all but the studies: tune.sh, plan.sh, quick_figures.py, tests/tools.
LONG = ("study regimes configs/", "plan --model qwen3_30b_a3b --gpu h100 --gpus 1,2,4 ", "--gpu h200 --gpus 8 --sessions codex ",
        "plan --model deepseek_v3 --cluster gb200_nvl72 ", "reproduce deployments_decode ",
        "tune configs/tune_quick.json", "calibrate --families ", "sensitivity configs/quick_rivals_sweep.json",
        "sensitivity configs/metro_deepseek_v3_rivals_sweep.json", "sensitivity configs/quick.json",
        "sweep configs/study_insurance_sweep.json ", "sweep configs/study_drafts_sweep.json ", "sweep configs/draft_choice_sweep.json ", "sweep configs/energy_deepseek_v3_sweep.json ",
        "sweep configs/layouts_sweep.json ", "run configs/quick.json --intervals")
PATIENCE_S = 3
SECOND_CTRL_C_S = 2
SEEDS = 2
# Slurm is tested by slurm.sh; here only that the line is understood.
SBATCH = "#!/bin/sh\necho 1\n"


def pages():
    listed = subprocess.run(["git", "ls-files", "*.md"], cwd=root, capture_output=True, text=True)
    names = listed.stdout.split() or [str(p.relative_to(root)) for p in root.rglob("*.md") if "build" not in p.parts]
    return sorted(names, key=lambda name: (name.count("/"), name))


def commands(text):
    """The lines of indented blocks that begin with moesim, continued ones joined, comments left out."""
    joined = re.sub(r"\\\n\s*", "", text)
    return [re.sub(r"\s+# .*", "", line.strip()) for line in re.findall(r"^ {4}(moesim(?:-lab)? .*)$", joined, re.M)]


def missing_programs(name, text):
    """What READMEs call as tools/.., tests/.. or .ci/.. and nobody could run."""
    programs = re.findall(r"(?:^ {4}|`)((?:tools|tests|traces/samples|\.ci)/[\w/.]+)(?=[ `\n])", text, re.M)
    folder = (root / name).parent
    for program in sorted(set(programs)):
        file = next((f for f in (root / program, folder / program) if f.exists()), None)
        if file is None:
            yield f"{program} is not there"
        elif not file.suffix and file.is_file() and not os.access(file, os.X_OK):
            yield f"{program} cannot be run"


def leave_out_seeds(configs):
    for file in configs.glob("*_sweep.json"):
        sweep = json.loads(file.read_text())
        if "seeds" in sweep:
            file.write_text(json.dumps({**sweep, "seeds": sweep["seeds"][:SEEDS]}))


def heed_ctrl_c():
    """What is started in the background ignores Ctrl-C, and so would the command."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def run(command, patience, **where):
    """Exit status and what was said; long work is interrupted as by Ctrl-C after `patience` seconds, none: never."""
    process = subprocess.Popen(["bash", "-c", f"exec {command}"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                               preexec_fn=heed_ctrl_c, **where)
    long = any(line in command + " " for line in LONG)
    try:
        out, err = process.communicate(timeout=patience if long else None)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGINT)
        again = False
        try:
            out, err = process.communicate(timeout=SECOND_CTRL_C_S)
        except subprocess.TimeoutExpired:
            again = True
            process.send_signal(signal.SIGINT)
            out, err = process.communicate()
        # Searches and studies end by themselves and keep what is done; other verbs by the signal.
        promised = "again to stop at once" if again else "the same command runs"
        goes_on = "study" not in command or promised in err
        stopped = process.returncode in (130, -signal.SIGINT)
        return subprocess.CompletedProcess(command, 0 if stopped and goes_on else process.returncode or 1, out, err)
    return subprocess.CompletedProcess(command, process.returncode, out, err)


def cpu_s():
    """Of all commands that ended so far."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def main():
    moesim = pathlib.Path(sys.argv[1]).resolve()
    patience = None if "--to-the-end" in sys.argv else PATIENCE_S
    failures = ran = 0

    def fail(name, what):
        nonlocal failures
        failures += 1
        print(f"FAILED: {name}: {what}")

    with tempfile.TemporaryDirectory(prefix="moesim-readme-") as work:
        here = pathlib.Path(work) / "moesim"
        for folder in COPIED:
            shutil.copytree(root / folder, here / folder)
        if patience:
            leave_out_seeds(here / "configs")
        programs = pathlib.Path(work) / "bin"
        programs.mkdir()
        (programs / "moesim").symlink_to(moesim)
        (programs / "moesim-lab").symlink_to(moesim.with_name("moesim-lab"))
        (programs / "sbatch").write_text(SBATCH)
        (programs / "sbatch").chmod(0o755)
        environment = {**os.environ, "PATH": f"{programs}:{os.environ['PATH']}", "MOESIM_DATA": str(here)}
        done_before, wrote = set(), {}  # commands that ended with 0; who wrote a file last
        for name in pages():
            text = (root / name).read_text()
            for problem in missing_programs(name, text):
                fail(name, problem)
            absent = set()  # files that a line would have written, had ../shared been there
            for command in commands(text):
                if any(file in command for file in absent):
                    print(f"{name}: left out, for want of {' '.join(absent)}: {command}")
                    continue
                outputs = re.findall(r"(?<=-o )\S+", command)
                if command in done_before and all(wrote.get(file) == command for file in outputs):
                    print(f"{name}: as on a page above: {command}")
                    continue
                began, spent = time.monotonic(), cpu_s()
                done = run(command, patience, cwd=here, env=environment)
                ran += 1
                # Long work on a busy machine tells its progress before it is refused.
                lines = [line for line in done.stderr.strip().splitlines() if not line.startswith("info: ")]
                if name in RECORDED and done.returncode != 0 and "shared" in done.stderr:
                    print(f"{name}: needs ../shared: {command}")
                    absent.update(outputs)
                    if done.returncode != 2 or len(lines) != 1:
                        fail(name, f"{command}\n  exit {done.returncode}: {done.stderr.strip()}")
                elif done.returncode == 2 and len(lines) == 1 and "built without Apache ECharts" in lines[0]:
                    print(f"{name}: NOT RUN, for want of charts (tools/report/fetch could not get them): {command}")
                elif done.returncode != 0:
                    fail(name, f"{command}\n  exit {done.returncode}: {lines[-1] if lines else 'not a word'}")
                else:
                    done_before.add(command)
                    wrote.update((file, command) for file in outputs)
                    print(f"{name}: {time.monotonic() - began:.1f} s, {cpu_s() - spent:.1f} s of CPU: {command}", flush=True)
    print(f"{ran} command lines, {failures} failures")
    return 1 if failures or ran < 20 else 0


sys.exit(main())
