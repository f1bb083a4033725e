#!/usr/bin/env python3
"""Do all verbs survive hostile command lines and files?

  tests/commands.py MOESIM [--seconds N]

What tests/fuzz cannot reach: whole verbs (tune, reproduce, sweep, pareto, compare, report, replay, place,
validate, calibrate) and --set, each with good input of which something was changed: a value of a JSON file, a
key, bytes of any file, or the file for a folder, a pipe's end, a link to itself, or gigabytes of nothing. MOESIM_SEED
says where to begin (1), MOESIM_WORLDS how many command lines (200; without end where --seconds is given). Each must end
with 0, with 3, or with 2 and one line on stderr and nothing on stdout; no sanitizer may speak. What does not stays in
build/commands/SEED with the command. What is still at work after a minute is listed: large numbers ask for large runs."""
import argparse, json, os, pathlib, random, shlex, shutil, subprocess, sys, tempfile, time
from concurrent.futures import ThreadPoolExecutor

root = pathlib.Path(__file__).resolve().parents[1]
found = root / "build/commands"
TIMEOUT = 60
LAB = "calibrate", "reproduce", "sensitivity", "study", "validate"  # verbs of moesim-lab
HOSTILE = [None, True, False, -1, 0, 1, 0.5, -0.0, 1e-300, 1e308, 2**31, 2**63, 2**64, -(2**63), "", " ", "x", "0", "-1 ms", "1e25 B",
           "1e400 s", "12 /s", "5 ms", "\n", "a\u0000b", "\ufffd\u202e", "../..", "/", "x" * 5000, [], {}, [[]], [None], {"": {}},
           {"type": "even"}, {"type": []}, [1, 2, 3], "linear", "trace", "metro", "</script>", "'; !touch x\n"]
POINTERS = ["", "/", "/seed", "/parallel/dp", "/parallel", "/workload/requests", "/workload/gating/preset", "/workload/gating",
            "/workload/lengths/prompt", "/cluster", "/cluster/gpu", "/model", "/placement/replication", "/failures", "/pools",
            "/placement", "/token_routing/decode", "/scheduling/max_num_seqs", "/slo/ttft", "/kv_cache/block_size", "/~", "/a/b/c"]
RATE = "/workload/arrivals/rate"


def prepare(moesim, folder):
    """Good inputs of every verb, small."""
    base = json.loads((root / "tests/tiny.json").read_text())
    for key in "cluster", "model":
        base[key] = str((root / "tests" / base[key]).resolve())
    poisson = {"/workload/arrivals": {"type": "poisson", "rate": "400 /s"}, "/slo": {"ttft": "20 ms", "tpot": "9 ms"}}
    axes = {"/scheduling/max_num_seqs": [4, 8], "/token_routing/decode": ["even", "static_primary"]}
    reports = {"base": "base.json", "axes": axes, "set": {"/workload/requests": 8}}
    write = lambda name, value: (folder / name).write_text(json.dumps(value, indent=1))
    write("base.json", base)
    write("sweep.json", reports)
    write("tune.json", {"base": "base.json", "set": poisson, "axes": axes | {RATE: ["100 /s", "400 /s", "1600 /s"]}})
    shutil.copy(root / "configs/reproduce/metro_fig04_toy.json", folder / "figure.json")
    shutil.copy(root / "configs/reproduce/metro_fig05_eplb_cost.json", folder / "table.json")
    write("load.json", {"load": [[1, 2, 0, 5], [3, 4, 1, 1]]})
    write("tokens.json", {"topk_ids": [[[0, 1], [2, 3]], [[1, 2], [0, 3]]], "source_rank": [0, 1]})
    (folder / "points.csv").write_text("id,category,gpu,tokens,metric,value,unit\nx-1,moe_kernel,H100,8,kernel_time,81.3,us\n")
    (folder / "requests.jsonl").write_text('{"arrival_s": 0, "prompt_tokens": 7, "output_tokens": 2}\n' * 4)
    run = lambda *arguments: subprocess.run([moesim, *arguments], cwd=folder, check=True, capture_output=True)
    run("place", "--policy", "eplb", "--load", "load.json", "--gpus", "2", "--replication", "1.5", "-o", "placement.json")
    run("trace", "generate", "--model", base["model"], "-o", "trace", "--gating",
        '{"type": "uniform", "requests": 6, "prompt_rows": 2, "decode_rows": 2}')
    for shard in 1, 2:
        run("sweep", "sweep.json", "-o", f"part{shard}.sqlite", "--shard", f"{shard}/2")
    run("sweep", "sweep.json", "-o", "store.sqlite")


# Command lines, and the files of them of which one is changed.
COMMANDS = [
    ("tune tune.json", ["tune.json", "base.json"]),
    ("tune tune.json --attainment 0.5 --json -o best.json", ["tune.json"]),
    ("sweep sweep.json -o new.sqlite", ["sweep.json", "base.json"]),
    ("sweep sweep.json -o store.sqlite", ["sweep.json", "store.sqlite"]),
    ("reproduce --folder . figure", ["figure.json"]),
    ("reproduce --folder . table", ["table.json"]),
    ("sweep -o merged.sqlite --merge part1.sqlite part2.sqlite", ["part1.sqlite", "part2.sqlite"]),
    ("pareto store.sqlite --by /token_routing/decode --csv out.csv", ["store.sqlite"]),
    ("compare store.sqlite --baseline /token_routing/decode=even --candidate /token_routing/decode=static_primary", ["store.sqlite"]),
    ("compare store.sqlite --best /scheduling/max_num_seqs", ["store.sqlite"]),
    ("report store.sqlite -o page.html", ["store.sqlite"]),
    ("run base.json --json", ["base.json"]),
    ("check base.json", ["base.json"]),
    ("explain base.json", ["base.json"]),
    ("what-if base.json --set /workload/requests=5", ["base.json"]),
    ("sensitivity base.json", ["base.json"]),
    ("replay --trace trace --gpus 4 --replication 1.5 --routing even,metro --batch 4", ["trace/topk_ids.npy", "trace/meta.json", "trace/requests.jsonl"]),
    ("trace info requests.jsonl", ["requests.jsonl"]),
    ("trace info trace", ["trace/topk_ids.npy", "trace/meta.json", "trace/requests.jsonl"]),
    ("place --policy eplb --load load.json --gpus 2 --replication 1.5", ["load.json"]),
    ("place --placement placement.json --load load.json --score", ["placement.json", "load.json"]),
    ("replay --routing metro --placement placement.json --tokens tokens.json", ["placement.json", "tokens.json"]),
    ("validate --points points.csv", ["points.csv"]),
    ("calibrate --points points.csv --gpu h100 -o gpu.json", ["points.csv"]),
    ("""run base.json --json --set '/workload/arrivals={"type": "trace", "file": "requests.jsonl"}'""", ["requests.jsonl"]),
]


class Change:
    """One seeded change of a folder of good inputs and a command line."""

    def __init__(self, seed, folder):
        self.random, self.folder = random.Random(seed), folder

    def path_into(self, value):
        """A container in a JSON value and a key of it, at any depth."""
        places = []

        def visit(inner):
            for key in inner if isinstance(inner, dict) else range(len(inner)):
                places.append((inner, key))
                if isinstance(inner[key], (dict, list)):
                    visit(inner[key])

        if isinstance(value, (dict, list)):
            visit(value)
        return self.random.choice(places) if places else None

    def change_json(self, text):
        value = json.loads(text)
        for _ in range(self.random.choice([1, 1, 2, 4])):
            place = self.path_into(value)
            if place is None:
                break
            inside, key = place
            act = self.random.randrange(4)
            if act == 0 and isinstance(inside, dict):
                inside[self.random.choice(["", "x", "type", "/workload/arrivals/rate", "seed", "/a"])] = self.random.choice(HOSTILE)
            elif act == 1:
                del inside[key]
            elif act == 2 and isinstance(inside, list):
                inside.extend(inside[:] or [1])
            else:
                inside[key] = self.random.choice(HOSTILE)
        return json.dumps(value).encode()

    def change_bytes(self, data):
        data = bytearray(data)
        for _ in range(self.random.choice([1, 1, 3, 20])):
            at = self.random.randrange(len(data) + 1)
            act = self.random.randrange(5)
            if act == 0:
                del data[at:]
            elif act == 1:
                del data[at : at + self.random.randint(1, 50)]
            elif act == 2:
                data[at:at] = self.random.choice([b"\0", b"\xff", b"\n", b'"', b"{", b"]", b"9" * 30, bytes(data[at : at + 100])])
            elif at < len(data):
                data[at] = self.random.choice([0, 255, 10, self.random.randrange(256)])
        return bytes(data)

    def swap_kind(self, file):
        """The file becomes what no file of the kind is."""
        file.unlink()
        kind = self.random.randrange(6)
        if kind == 0:
            file.mkdir()
        elif kind == 1:
            file.symlink_to("/dev/null")
        elif kind == 2:
            file.symlink_to(file.name)
        elif kind == 3:
            file.symlink_to("/proc/self/mem")
        elif kind == 4:
            with open(file, "wb") as stream:
                stream.truncate(5 << 30)
        else:
            file.symlink_to(self.random.choice([self.folder / "trace", self.folder / "store.sqlite"]))

    def command(self):
        line, files = self.random.choice(COMMANDS)
        arguments = shlex.split(line)
        if arguments[0] in ("run", "check", "explain") and self.random.random() < 0.5:
            for _ in range(self.random.randint(1, 3)):
                value = self.random.choice(HOSTILE)
                text = value if isinstance(value, str) and self.random.random() < 0.5 else json.dumps(value)
                arguments += ["--set", (self.random.choice(POINTERS) + "=" + text).replace("\0", "")]
        elif self.random.random() < 0.1:  # the command line itself
            at = self.random.randrange(1, len(arguments))
            arguments[at] = self.random.choice(["", "-1", "0", "99999999999999999999", "nan", "1e308", "/", ".", "--", "\udcff", "x=y", "a,b", "3/2"])
        else:
            file = self.folder / self.random.choice(files)
            data, act = file.read_bytes(), self.random.random()
            if act < 0.1:
                self.swap_kind(file)
            else:
                file.write_bytes(self.change_json(data) if file.suffix == ".json" and act < 0.7 else self.change_bytes(data))
        return arguments


def wrong(done):
    """What a command's end breaks, or None."""
    said = [line for line in done.stderr.strip().splitlines() if not line.startswith(("info:", "warning:"))]
    if any(word in done.stderr for word in ("Sanitizer", "runtime error:", "internal error")) or done.returncode not in (0, 2, 3):
        return f"exit {done.returncode}: {done.stderr.strip()[-2500:]}"
    if done.returncode == 2 and (len(said) != 1 or done.stdout):
        return f"refused in {len(said)} lines, {len(done.stdout)} bytes on stdout: {done.stderr.strip()[-1500:]}"
    return None


def bounded(moesim):
    """What keeps a command to 4 GB: its own option if it was built with ASan, whose shadow is larger, else the system."""
    asan = subprocess.run([moesim, "--version"], capture_output=True, text=True, env={**os.environ, "ASAN_OPTIONS": "help=1"})
    return [] if "Sanitizer" in asan.stderr else ["prlimit", f"--as={4 << 30}"]


def attempt(moesim, good, seed):
    """ "fine", "slow", or what is wrong."""
    folder = pathlib.Path(tempfile.mkdtemp(prefix="moesim-commands-"))
    try:
        shutil.copytree(good, folder, dirs_exist_ok=True)
        arguments = Change(seed, folder).command()
        environment = {**os.environ, "ASAN_OPTIONS": "hard_rss_limit_mb=4096"}
        try:
            program = moesim[:-1] + [moesim[-1] + "-lab" * (arguments[0] in LAB)]
            done = subprocess.run([*program, *arguments], cwd=folder, capture_output=True, text=True, errors="replace",
                                  timeout=TIMEOUT, env=environment, stdin=subprocess.DEVNULL)
            problem = wrong(done)
        except subprocess.TimeoutExpired:
            return "slow: " + shlex.join(arguments)[:300]
        if problem is None:
            return "fine"
        kept = found / str(seed)
        shutil.rmtree(kept, ignore_errors=True)
        kept.parent.mkdir(parents=True, exist_ok=True)
        shutil.copytree(folder, kept, symlinks=True, ignore=lambda at, names: [n for n in names if (pathlib.Path(at) / n).lstat().st_size > 1 << 30])
        return f"{shlex.join(arguments)}\n  {problem}"
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("moesim")
    parser.add_argument("--seconds", type=float, help="begin no more command lines after so many")
    asked = parser.parse_args()
    moesim = str(pathlib.Path(asked.moesim).resolve())
    first = int(os.environ.get("MOESIM_SEED", 1))
    last = first + int(os.environ.get("MOESIM_WORLDS", 1 << 40 if asked.seconds else 200))
    began, jobs = time.monotonic(), os.cpu_count() or 1
    fine, slow, broken = 0, [], []
    with tempfile.TemporaryDirectory(prefix="moesim-good-") as good, ThreadPoolExecutor(jobs) as pool:
        prepare(moesim, pathlib.Path(good))
        limited = [*bounded(moesim), moesim]
        seed = first
        while seed < last and not (asked.seconds and time.monotonic() - began > asked.seconds):
            batch = range(seed, min(seed + 8 * jobs, last))
            for tried, outcome in zip(batch, pool.map(lambda s: attempt(limited, good, s), batch)):
                if outcome == "fine":
                    fine += 1
                elif outcome.startswith("slow: "):
                    slow.append(tried)
                    print(f"seed {tried}: {outcome}", flush=True)
                else:
                    broken.append(tried)
                    print(f"seed {tried}: moesim {outcome}\n  again: MOESIM_SEED={tried} MOESIM_WORLDS=1 tests/commands.py "
                          f"{asked.moesim}; its folder: build/commands/{tried}", flush=True)
            seed = batch[-1] + 1
    print(f"{seed - first} command lines from seed {first} on: {fine} ended as they should, {len(slow)} were slow, {len(broken)} did "
          f"not{': seeds ' + ' '.join(map(str, broken)) if broken else ''}; {time.monotonic() - began:.0f} s")
    return 1 if broken else 0


sys.exit(main())
