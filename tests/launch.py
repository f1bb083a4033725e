#!/usr/bin/env python3
"""Does a name out of a config, a store or a path ever become a command, a file or a broken argument of what --launch prints?

  tests/launch.py MOESIM

Each hostile name is given as an inline model's name, as a folder with a config.json and as a placement file to every verb
that prints commands. What is printed runs in bash with programs in the engines' place, which only write down their
arguments. Nothing else may have run, and the name must arrive as one argument; or moesim refuses the name in one line."""
import json, os, pathlib, re, subprocess, sys, tempfile
from concurrent.futures import ThreadPoolExecutor

root = pathlib.Path(__file__).resolve().parents[1]
moesim = str(pathlib.Path(sys.argv[1]).resolve())
ENGINES = ("vllm", "sglang", "trtllm")
SHELL = ("$(touch PWNED)", "`touch PWNED`", "x;touch PWNED", "x&touch PWNED&", "x|touch PWNED", "x>PWNED", "x<PWNED", "x y",
         "*", "~", "$HOME", "it's", 'say "x"', "back\\slash", "back\\", "-rf", "--help", "!x", "#x", "{a,b}", "=ls", "[x]", "(x)",
         "%s", "YAML", "a: b", "x' $(touch PWNED) '", "é ü", "$((1+1))")
HIDDEN = ("x\ntouch PWNED", "x\rtouch PWNED", "x\x1b]0;t\x07", "x\tb", "x\x7f", "x\u009b2J", "x\u2028y", "x\u202ey")
NASTIEST = ("$(touch PWNED)", "it's; touch PWNED", "-rf")
HF = {"architectures": ["OlmoeForCausalLM"], "model_type": "olmoe", "hidden_size": 256, "intermediate_size": 128,
      "num_attention_heads": 4, "num_key_value_heads": 4, "num_experts": 8, "num_experts_per_tok": 2, "num_hidden_layers": 2,
      "vocab_size": 512, "tie_word_embeddings": False, "torch_dtype": "bfloat16", "max_position_embeddings": 4096}
ZOO = {"name": "", "source": "a test", "hidden": 256, "vocabulary": 512, "tied_embeddings": False,
       "attention": {"query_heads": 4, "kv_heads": 4, "head_dim": 64}, "experts": {"count": 8, "per_token": 2, "width": 128},
       "layers": [{"repeat": 2, "pattern": [{"ffn": "moe"}]}]}
failures = []


def stubs(folder):
    """Programs with the engines' names, each of which appends its arguments to the file $SEEN."""
    folder.mkdir()
    for name in ("vllm", "vllm-router", "python3", "trtllm-serve", "trtllm-llmapi-launch", "srun"):
        program = folder / name
        program.write_text('#!/bin/bash\nprintf \'%s\\0\' "$0" "$@" >>"$SEEN"\nprintf \'\\0\' >>"$SEEN"\n')
        program.chmod(0o755)
    return folder


def tiny(model, **more):
    config = json.loads((root / "tests/tiny.json").read_text())
    config.update(cluster=str(root / "hardware/clusters/h100x8.json"), model=model, instances=2, parallel={"dp": 4, "ep": 4})
    config.update(more)
    return config


def commands_of(text):
    """What a verb printed from the first command on."""
    lines = text.splitlines()
    starts = [i for i, line in enumerate(lines) if line.startswith(("NODE0=", "# each command"))]
    return "\n".join(lines[starts[0]:]) + "\n" if starts else None


def execute(programs, commands, work):
    """The argument lists that the programs saw, and the files that came into being."""
    seen = work.parent / (work.name + ".seen")
    seen.write_bytes(b"")
    work.mkdir()
    ran = subprocess.run(["bash", "-c", commands], cwd=work, capture_output=True, text=True,
                         env={"PATH": f"{programs}:/usr/bin:/bin", "SEEN": str(seen), "HOME": str(work)})
    calls = [call.split("\0") for call in seen.read_bytes().decode().split("\0\0") if call]
    return ran, calls, sorted(path.name for path in work.iterdir())


def judge(what, name, done, engine, programs, work, wanted):
    """Whether a run of moesim printed commands that are safe and hold `wanted`, or refused in one line."""
    hidden = name in HIDDEN
    if hidden or done.returncode != 0:
        one_line = done.stderr.strip().splitlines()[-1:] or [""]
        if not (hidden and done.returncode == 2 and "a control or hidden character" in one_line[0]):
            failures.append(f"{what}: exit {done.returncode}: {one_line[0]}")
        if re.search("[\x00-\x08\x0b-\x1f\x7f\u0080-\u009f\u202a-\u202e]", done.stdout + done.stderr):
            failures.append(f"{what}: a control character is printed")
        return
    commands = commands_of(done.stdout)
    if commands is None:
        return failures.append(f"{what}: no command is printed")
    ran, calls, files = execute(programs, commands, work)
    odd = set(files) - {"options.yaml"}
    if ran.returncode != 0 or ran.stderr or odd:
        failures.append(f"{what}: bash says {ran.returncode} {ran.stderr.strip()!r}, files {sorted(odd)}")
    if "router" in what or len(calls) != (4 if engine != "trtllm" else 3):
        failures.append(f"{what}: {len(calls)} programs are started")
    arguments = {argument for call in calls for argument in call}
    if engine == "trtllm" and (work / "options.yaml").exists():
        found = re.search(r"load_balancer: (\".*\")", (work / "options.yaml").read_text())
        arguments |= {json.loads(found.group(1))} if found else set()
    for text in wanted if engine != "vllm" or "placement" not in what else ():
        if text not in arguments and "./" + text not in arguments:
            failures.append(f"{what}: {text!r} does not arrive; {sorted(arguments)}")


def run(*arguments, cwd):
    return subprocess.run([moesim, *arguments], capture_output=True, text=True, cwd=cwd, errors="surrogateescape")


def as_folder(work, name):
    folder = work / "models" / name
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(HF))
    return f"models/{name}", f"models/{name}"


def try_name(number, name, programs, top):
    work = top / str(number)
    work.mkdir()
    config = work / "config.json"
    path, arrives = as_folder(work, name)
    placement = f"{name}.json"
    (work / placement).write_text(json.dumps({"physical_to_logical_map": [list(range(8))] * 2}))
    cases = {"name": (tiny({**ZOO, "name": name}), name), "path": (tiny(path), arrives),
             "placement": (tiny({**ZOO, "name": "m"}, placement={"type": "from_file", "file": placement, "gpus": 4}), placement)}
    for kind, (experiment, wanted) in cases.items():
        for engine in ENGINES:
            config.write_text(json.dumps(experiment))
            done = run("run", "config.json", "--launch", engine, cwd=work)
            if kind == "placement" and name in HIDDEN and engine == "vllm":
                continue  # it is not told of the file
            judge(f"run {kind} {name!r} {engine}", name, done, engine, programs, work / f"{kind}-{engine}", [wanted])
    # A store, which may be somebody else's, and a search.
    config.write_text(json.dumps(tiny(path, slo={"ttft": "1 s", "tpot": "1 s"}, instances=2)))
    # Long enough to be in a steady state.
    sweep = {"base": "config.json", "set": {"/workload/arrivals": {"type": "poisson", "rate": "1 /s"}, "/workload/requests": 400},
             "axes": {"/scheduling/max_num_seqs": [4, 8], "/workload/arrivals/rate": ["10 /s"]}}
    (work / "sweep.json").write_text(json.dumps(sweep))
    filled = run("sweep", "sweep.json", "-o", "s.sqlite", "-j", "1", cwd=work)
    if filled.returncode != 0:
        failures.append(f"sweep {name!r}: {filled.stderr.strip()}")
    for engine in ENGINES:
        for verb, arguments in (("compare", ("s.sqlite", "--best", "/scheduling/max_num_seqs")), ("tune", ("sweep.json",))):
            done = run(verb, *arguments, "--launch", engine, cwd=work)
            judge(f"{verb} path {name!r} {engine}", name, done, engine, programs, work / f"{verb}-{engine}", [arrives])


def try_plan(number, name, programs, top):
    work = top / f"plan{number}"
    work.mkdir()
    path, _ = as_folder(work, name)
    for engine in ENGINES:  # the second and third go on from the store of the first
        done = run("plan", "--model", path, "--gpu", "h100", "--gpus", "1", "--isl", "512", "--osl", "64", "--ttft", "5ms",
                   "--tpot", "500us", "--engine", "none", "--no-page", "-o", "plan", "--launch", engine, cwd=work)
        commands = commands_of(done.stdout)
        if done.returncode != 0 or commands is None:
            failures.append(f"plan {name!r} {engine}: exit {done.returncode}: {done.stderr.strip()[-200:]}")
            continue
        ran, calls, files = execute(programs, commands, work / f"run-{engine}")
        arguments = {argument for call in calls for argument in call}
        if ran.returncode != 0 or ran.stderr or set(files) - {"options.yaml"} or not any(a.endswith(name) for a in arguments):
            failures.append(f"plan {name!r} {engine}: {ran.stderr.strip()!r}, {files}, {sorted(arguments)}")


def main():
    with tempfile.TemporaryDirectory(prefix="moesim-launch.") as folder:
        top = pathlib.Path(folder)
        programs = stubs(top / "programs")
        with ThreadPoolExecutor(max(2, os.cpu_count() or 2)) as pool:
            list(pool.map(lambda case: try_name(*case, programs, top), enumerate(SHELL + HIDDEN)))
            list(pool.map(lambda case: try_plan(*case, programs, top), enumerate(NASTIEST)))
        if any(top.rglob("PWNED")) or pathlib.Path("PWNED").exists():
            failures.append("a name was executed")
    print("\n".join(failures) if failures else f"{len(SHELL + HIDDEN)} names, 3 engines, 4 verbs: none became a command")
    return 1 if failures else 0


sys.exit(main())
