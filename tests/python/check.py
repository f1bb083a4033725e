# SPDX-License-Identifier: Apache-2.0
"""Does moesim in the process of Python do what the program does, and are policies in Python held to the contract of C++?
  tests/python/check.py BUILD     ends with 77 where numpy is missing
"""
import importlib.util
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

here = Path(__file__).resolve().parent
root = here.parents[1]
build = Path(sys.argv[1]).resolve()
if importlib.util.find_spec("numpy") is None and sys.executable != "/usr/bin/python3":
    os.execv("/usr/bin/python3", ["/usr/bin/python3", __file__, str(build)])
if importlib.util.find_spec("numpy") is None or not list((build / "python/moesim/bin").glob("_moesim*.so")):
    print("skipped: numpy or pybind11 is not installed (tools/setup --tests)")
    sys.exit(77)
sys.path.insert(0, str(build / "python"))
environment = {**os.environ, "PYTHONPATH": str(build / "python")}

import moesim

assert "numpy" not in sys.modules and "pandas" not in sys.modules, "import moesim brings more than it needs"
spec = importlib.util.spec_from_file_location("policies", here / "policies.py")
policies = importlib.util.module_from_spec(spec)
sys.modules["policies"] = policies
spec.loader.exec_module(policies)
from policies import Broken, Even, Jsq, Linear, Metro, Shift, VllmLegacy, WrongSlot

work = tempfile.TemporaryDirectory()
os.chdir(work.name)
trace = root / "traces/samples/small"
tiny = json.loads((root / "tests/tiny.json").read_text())
for key in "cluster", "model":
    tiny[key] = str((root / "tests" / tiny[key]).resolve())


def rows(table):
    return table.to_dict("records") if hasattr(table, "to_dict") else table


def plain(rows_, *without):
    return [{key: value for key, value in row.items() if key not in without} for row in rows_]


def refused(call, *expected, place=None):
    try:
        call()
    except moesim.Error as error:
        for text in expected:
            assert text in str(error), f"{text!r} is not in: {error}"
        assert len(str(error).splitlines()) == 1 and str(error) in (f"{error.place}: {error.reason}", error.reason), error
        assert place is None or error.place.endswith(place), error.place
        return error
    raise AssertionError(f"{expected} was taken")


def with_(**changes):
    return {**tiny, **changes}


def decoded_by(router, dispatch="all_to_all", **changes):
    return with_(token_routing={**tiny["token_routing"], "decode": router},
                 dispatch={**tiny["dispatch"], "decode": dispatch},
                 placement={"type": "eplb", "replication": 1.5}, **changes)


def same_run(one, other):
    a, b = moesim.run(one), moesim.run(other)
    for section in "metrics", "steps", "experts", "breakdown":
        assert a[section] == b[section], section
    assert rows(a.requests) == rows(b.requests)
    assert plain(rows(a.steps), "rule") == plain(rows(b.steps), "rule")
    return a


def replays_equal():
    for mine, theirs in (Even, "even"), (Metro, "metro"), (VllmLegacy, "vllm_legacy"):
        table = rows(moesim.replay(trace=trace, gpus=8, replication=[1, 1.5, 2], batch=[1, 8, 16],
                                   routing=[theirs, mine], batches=20))
        by_name = [[row for row in table if (row["routing"] == theirs) == own] for own in (False, True)]
        assert len(table) == 18 and plain(by_name[0], "routing") == plain(by_name[1], "routing"), theirs
    placed = rows(moesim.replay(trace=trace, gpus=8, replication=1.5, placement=["linear", Linear], batches=20))
    assert plain(placed[:3], "placement") == plain(placed[3:], "placement")


def runs_equal():
    report = same_run(with_(), with_(token_routing={"prefill": Even, "decode": Even, "mixed": "prefill"}))
    steps = rows(report.steps)
    assert len(rows(report.requests)) == 4 and [row["step"] for row in steps] == list(range(len(steps))), steps
    name = f"{here}/policies.py:Metro"
    charge = {"token_routing": {"source": "the same", "metro": {"per_128_active": "26 us"}, name: {"per_128_active": "26 us"}}}
    same_run(decoded_by("metro", "all_gather", charges=charge), decoded_by(name, "all_gather", charges=charge))
    same_run(with_(request_routing="jsq"), with_(request_routing=Jsq))
    same_run(with_(placement={"type": "linear", "replication": 1.5}),
             with_(placement={"type": Linear, "replication": 1.5}))
    moved = moesim.run(with_(rebalancing={"type": Shift, "after": 2}))["rebalancing"]
    still = moesim.run(with_(rebalancing={"type": Shift, "after": 9999}))["rebalancing"]
    assert (moved["layers_switched"], still["layers_switched"]) == (1, 0), (moved, still)


def contract():
    replay = lambda routing: moesim.replay(trace=trace, gpus=8, replication=1.5, batches=2, routing=routing)
    broken = lambda how: (lambda: replay({"type": Broken, "how": how}))
    file = "policies.py:Broken.route(), layer 0"
    refused(broken("other_expert"), "but its slots (", "are given 0")
    refused(broken("floats"), "of type float64; expected whole numbers")
    refused(broken("short"), "returned 47 numbers; expected 48")
    refused(broken("negative"), "is given -1 tokens; expected 0 or more")
    refused(broken("none"), "returned NoneType; expected 48 whole numbers")
    raised = refused(broken("raises"), "ZeroDivisionError", f"policies.py:")
    assert isinstance(raised.__cause__, ZeroDivisionError) and raised.__cause__.__traceback__ is not None
    refused(lambda: replay(WrongSlot), "picks expert", "but slot 0 does not hold the expert; its slots: ")
    refused(lambda: replay({"type": Broken, "why": 1}), "unexpected keyword argument 'why'")
    refused(lambda: replay(Linear), "is no token router: the class has no method route or route_rows")
    refused(lambda: replay("nowhere.py:Mine"), "there is no ", "nowhere.py; a name in a config is relative to the config's folder")
    refused(lambda: replay(f"{here}/policies.py:Nobody"), "Nobody")
    for how, said in ("missing", "expert 1 has no slot"), ("out", "holds expert -1; expected 0 to 31"):
        refused(lambda: moesim.replay(trace=trace, gpus=8, batches=2, placement={"type": Broken, "how": how}), said)
    refused(lambda: moesim.run(with_(request_routing={"type": Broken, "how": "rank"})), "there is no rank 99 to route to; one of: 0, 1, 2, 3")
    refused(lambda: moesim.run(with_(modle=1)), "modle", place="config:/")
    refused(lambda: moesim.run(with_(seed=float("nan"))), "not JSON compliant", place="config")
    refused(lambda: moesim.run("nowhere.json"), "nowhere.json")
    refused(lambda: moesim.run(with_(), sed=1), "--sed")
    # Behind a dispatch that does not tell the group's counts, as in C++.
    said = [refused(lambda: moesim.run(decoded_by(one)), "all_gather") for one in ("metro", Metro)]
    assert said[0].reason.replace("metro", "M") == said[1].reason.replace(f"{os.path.relpath(here)}/policies.py:Metro", "M")


def command_line():
    run = lambda *words: subprocess.run([sys.executable, "-m", "moesim", *map(str, words)], env=environment,
                                        capture_output=True, text=True)
    words = ["replay", "--trace", trace, "--gpus", 8, "--replication", 1.5, "--batches", 20, "--json", "--routing"]
    mine = run(*words, f"{here}/policies.py:Metro")
    assert mine.returncode == 0, mine.stderr
    theirs = run(*words, "metro")
    assert mine.stdout == theirs.stdout.replace('"metro"', f'"{here}/policies.py:Metro"')
    bad = run(*words, f"{here}/policies.py:Broken:how=short")
    assert bad.returncode == 2 and "expected 48" in bad.stderr and bad.stderr.count("\n") == 1, bad.stderr
    alone = subprocess.run([build / "tools/moesim", *map(str, words), f"{here}/policies.py:Metro"], capture_output=True, text=True)
    assert alone.returncode == 2 and "python3 -m moesim" in alone.stderr, alone.stderr
    assert run("--version").stdout == f"moesim {moesim.__version__}\n"


def sweeps():
    Path("mine.py").write_text("from policies import Even\nclass Mine(Even):\n  pass\n")
    for name in "policies.py",:
        Path(name).write_text((here / name).read_text())
    axes = {"/token_routing/decode": ["even", "mine.py:Mine"]}
    config = {"base": with_(), "axes": axes}
    table = rows(moesim.sweep(config))
    assert [row["status"] for row in table] == ["done"] * 2 and table[0]["output_throughput"] == table[1]["output_throughput"]
    moesim.sweep(config, "kept.sqlite")
    ratio = moesim.compare("kept.sqlite", baseline={"/token_routing/decode": "even"},
                           candidate={"/token_routing/decode": "mine.py:Mine"})
    assert "1" in json.dumps(ratio)
    # A store knows a class by what its file says.
    Path("mine.py").write_text("class Mine:\n  pass\n")
    refused(lambda: moesim.sweep(config, "kept.sqlite"), "kept.sqlite")


def processes():
    before = signal.getsignal(signal.SIGINT)
    told = []
    moesim.run(with_(workload={**tiny["workload"], "requests": 256}), progress=lambda *step: told.append(step))
    assert told[-1] == ("requests", 256, 256), told[-1:]
    long = with_(workload={**tiny["workload"], "requests": 2_000_000})
    threading.Timer(0.5, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
    began = time.monotonic()
    try:
        moesim.run(long)
        raise AssertionError("Ctrl-C did not end the run")
    except KeyboardInterrupt:
        assert time.monotonic() - began < 20
    moesim.sweep({"base": with_(), "axes": {"/seed": [1, 2]}})
    assert signal.getsignal(signal.SIGINT) is before
    try:  # Python's own handler answers still
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(1)
        raise AssertionError("Ctrl-C is lost after a sweep")
    except KeyboardInterrupt:
        pass


def step_models():
    deployment = {"set": {"/parallel": {"dp": 4, "ep": 4}}}
    rank = {"new": [1, 1, 30], "context": [20, 7, 0], "prompt": [12, 7, 30], "request": [0, 2, 3]}
    batches = [{"ranks": [rank, {}, {"new": [1], "context": [9]}, {}]}, {"ranks": [{}, {}, {}, {"new": [8, 8], "context": [0, 16]}]}]
    for fidelity in "exact", "sampled":
        config = with_(fidelity=fidelity, **{key[1:]: value for key, value in deployment["set"].items()})
        lines = "".join(json.dumps(batch) + "\n" for batch in 5 * batches)
        said = subprocess.run([build / "tools/moesim", "price", json.dumps(config)], input=lines, check=True, capture_output=True, text=True)
        model = moesim.StepModel(config)
        answers = model.price(5 * batches)
        assert answers == [json.loads(line) for line in said.stdout.splitlines()] and len(answers) == 10
        again = moesim.StepModel(with_(fidelity=fidelity), **deployment)  # anew, and a batch at a time
        assert [again.price(batch) for batch in 5 * batches] == answers
    refused(lambda: model.price(batches + [{"ranks": [{}]}]), "has 1 ranks, and the deployment 4", place="batch 13:/ranks")
    assert model.price([]) == []
    refused(lambda: moesim.StepModel(config, pool="prefill"), "the experiment has one pool")
    refused(lambda: moesim.StepModel(with_(modle=1)), "modle", place="config:/")
    refused(lambda: moesim.StepModel(config, socket="here"), "socket")
    refused(lambda: moesim.StepModel(config, help=True), "these options print a text")
    # A policy of Python decides in each step.
    routed = {kind: moesim.StepModel({**decoded_by(kind), "parallel": {"dp": 4, "ep": 4}}) for kind in ("even", Even)}
    assert routed["even"].price(batches) == routed[Even].price(batches)


def other_verbs():
    checked = moesim.check(with_())
    assert checked["valid"] and checked["pool"]["bytes_per_gpu"]["kv_cache"] > 0, checked
    points = moesim.pareto("kept.sqlite", by="/token_routing/decode")["points"]
    assert [point["on_frontier"] for point in points] == [1, 1], points
    assert moesim.explain(with_(), step="decode", sequences=2)["operations"]
    assert set(os.listdir(".")) <= {"mine.py", "policies.py", "kept.sqlite", "__pycache__", "policy.svg", "policy.sqlite"}, os.listdir(".")


def tutorials():
    # The class and the command of the page, as they stand there.
    page = (root / "configs/tutorials/researcher.md").read_text()
    source = page[page.index("    class Mine"):]
    Path("mine.py").write_text("".join(line[4:] + "\n" for line in source[:source.index("    export PYTHONPATH")].splitlines()))
    command = re.search(r"^ {4}python3 (-m moesim replay .*)$", page, re.M)[1].split()
    command[command.index("--trace") + 1] = str(trace)
    done = subprocess.run([sys.executable, *command], env=environment, capture_output=True, text=True)
    assert done.returncode == 0 and "mine.py:Mine" in done.stdout, done.stderr
    # The notebook: its cells in turn, in a process without a file.
    notebook = json.loads((root / "configs/tutorials/policy.ipynb").read_text())
    cells = ["".join(cell["source"]) for cell in notebook["cells"] if cell["cell_type"] == "code"]
    done = subprocess.run([sys.executable, "-c", "\n".join(cells)], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    picture = Path("policy.svg").read_text()
    assert picture.count("<path") > 3 and "FewestTokens" in picture, picture[:500]


for part in tutorials, replays_equal, runs_equal, contract, command_line, sweeps, step_models, processes, other_verbs:
    began = time.monotonic()
    part()
    print(f"{part.__name__}: {time.monotonic() - began:.1f} s", flush=True)
