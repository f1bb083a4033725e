# SPDX-License-Identifier: Apache-2.0
"""moesim simulates clusters that serve Mixture-of-Experts models, in the process of Python.

    report = moesim.run("experiment.json")      # or of a dict
    report["metrics"]["output_throughput"]      # `moesim keys report` says what a report holds
    report.requests                             # a pandas.DataFrame where pandas is installed, else a list of dicts
    moesim.replay(trace="recorded", gpus=8, routing=["even", MyRouter])

Functions take the options of the verb of their name (`moesim run --help`), with "_" for "-". The option `progress` is called
with (what, done, in all) as work goes on. A policy can be a class of Python, in a config and as an option.
"""
import functools
import importlib.util
import io
import json
import os
import signal
import sqlite3
import sys
import tempfile
import zlib
from pathlib import Path

from .bin import _moesim

__all__ = ["Error", "Report", "StepModel", "check", "compare", "data", "explain", "pareto", "plan", "read", "replay", "run", "sweep"]
__version__ = _moesim.version

data = Path(_moesim.data_folder())
"""The folder with the shipped configs, models and hardware."""


class Error(Exception):
    """An input or a policy is wrong: `place` says where ("config:/model", "my.py:Mine.route(), layer 3"), `reason` what is
    wrong. `__cause__` is the exception that a policy raised."""

    def __init__(self, message):
        super().__init__(message)
        place, colon, reason = message.partition(": ")
        self.place, self.reason = (place, reason) if colon else ("", message)


class Report(dict):
    """What `moesim run --json` prints. `requests` and `steps` have a row for each request and step."""

    def __init__(self, report, requests=None, steps=None):
        super().__init__(report)
        self._tables = {"requests": requests, "steps": steps}

    def _table(self, name):
        if self._tables[name] is None:
            raise Error(f"{name}: is of one deployment; name one with deployment=")
        return _frame_of_csv(self._tables[name])

    @functools.cached_property
    def requests(self):
        return self._table("requests")

    @functools.cached_property
    def steps(self):
        return self._table("steps")


def run(config=None, *, progress=None, **options):
    """Simulates one experiment, a dict or the path of a JSON file, and returns its Report.

    set={"/placement/replication": 1.5} changes keys. Paths in a dict are relative to the working directory. Without a
    config the options say the deployment: run(model="gpt_oss_20b", gpu="h200", concurrency=64).
    Raises Error where the experiment is refused.
    """
    with tempfile.TemporaryDirectory(prefix="moesim-") as folder:
        tables = {name: os.path.join(folder, name) for name in ("requests", "steps")}
        if "deployment" not in options and "deployments" in _read(config):
            tables = {}
        report = json.loads(_verb("run", config, {"json": True, **options, **tables}, progress))
        return Report(report, **{name: Path(file).read_text() for name, file in tables.items()})


def sweep(config, output=None, *, progress=None, **options):
    """Runs a sweep, a dict or the path of a JSON file, and returns its points as read() does.

    output: the store, a SQLite file that keeps the points; none is kept without it.
    """
    if output is None:
        with tempfile.TemporaryDirectory(prefix="moesim-") as folder:
            return sweep(config, os.path.join(folder, "sweep.sqlite"), progress=progress, **options)
    _verb("sweep", config, {**options, "output": output}, progress)
    return read(output)


def plan(*, progress=None, **options):
    """Finds deployments as `moesim plan` does: plan(model="gpt_oss_20b", gpu="h200", gpus=8, ttft="1s", tpot="50ms").

    Returns what `moesim plan --json` prints; with several GPUs or numbers of GPUs a list.
    """
    return json.loads(_verb("plan", None, {"json": True, **options}, progress))


def explain(config=None, *, progress=None, **options):
    """Takes one step of an experiment apart. Returns what `moesim explain --json` prints."""
    return json.loads(_verb("explain", config, {"json": True, **options}, progress))


def replay(*, progress=None, **options):
    """Scores policies on recorded routing: replay(trace="recorded", gpus=8, routing=["metro", MyRouter]).

    Returns a row for each placement, ratio, batch size and routing.
    """
    return _frame(json.loads(_verb("replay", None, {"json": True, **options}, progress))["rows"])


def compare(store, *, progress=None, **options):
    """Compares points of a store. Returns what `moesim compare --json` prints."""
    return json.loads(_verb("compare", store, {"json": True, **options}, progress))


def pareto(store, *, progress=None, **options):
    """Finds the frontier of a store, throughput against latency; plot= names a picture to draw. Returns what `moesim pareto
    --json` prints."""
    return json.loads(_verb("pareto", store, {"json": True, **options}, progress))


def check(config=None, *, progress=None, **options):
    """Reads an experiment and all that it names. Returns what `moesim check --json` prints; raises Error where anything is
    wrong."""
    return json.loads(_verb("check", config, {"json": True, **options}, progress))


class StepModel:
    """Step times for another scheduler or simulator: StepModel(config, set={"/fidelity": "sampled"}).price(batches).

    The options are those of `moesim price`, and so are batches and answers (`moesim price --help`), as dicts.
    """

    def __init__(self, config=None, **options):
        if "socket" in options:
            raise Error('socket: only the command listens; leave "socket" out and call price()')
        self._model = _answer_of(lambda: _moesim.StepModel(_words("price", config, options)))

    def price(self, batches):
        """Prices a list of batches, one after another, and returns a list of answers; of one batch its answer.

        Raises Error at the first batch that is wrong; those before it are priced.
        """
        lines = [_json(batch, {}) for batch in ([batches] if isinstance(batches, dict) else batches)]
        answers = [json.loads(answer) for answer in _answer_of(lambda: self._model.price(lines))]
        return answers[0] if isinstance(batches, dict) else answers


def read(store):
    """Returns the points of a store that `moesim sweep`, `tune` or `plan` wrote: a row for each point.

    A row holds the point's `status`, the value of each axis under the axis' short name ("replication"), and the main
    metrics as `moesim keys report` names the metrics. Raises Error when the file is not a store.
    """
    try:
        connection = sqlite3.connect(f"{Path(store).resolve().as_uri()}?mode=ro", uri=True)
        try:
            connection.row_factory = sqlite3.Row
            return _frame([dict(row) for row in connection.execute("select * from metrics")])
        finally:
            connection.close()
    except sqlite3.Error as error:
        raise Error(f"{store}: not a store of moesim: {error}") from error


def main():
    """The command `moesim`."""
    for stops in signal.SIGINT, signal.SIGPIPE:
        signal.signal(stops, signal.SIG_DFL)
    sys.exit(_moesim.run_program(["moesim", *sys.argv[1:]]))


def _words(verb, config, options):
    words = [verb] + ([] if config is None else [_config(config)])
    for name, value in options.items():
        option = "--" + name.replace("_", "-")
        if value is True:
            words.append(option)
        elif isinstance(value, dict) and "type" not in value:
            words += [f"{option}={pointer}={_json(new, config)}" for pointer, new in value.items()]
        elif value is not None and value is not False:
            words += [f"{option}={_word(one)}" for one in (value if isinstance(value, (list, tuple)) else [value])]
    return words


def _answer_of(call):
    _moesim.log_to_python()
    try:
        return call()
    except _moesim.Refused as refused:
        raise Error(str(refused)) from _moesim.take_cause()


def _verb(verb, config, options, progress):
    code, text = _answer_of(lambda: _moesim.run_words(_words(verb, config, options), progress))
    if code == 130:
        raise KeyboardInterrupt
    return text


def _read(config):
    if config is None or isinstance(config, dict):
        return config or {}
    try:
        return json.loads(Path(config).read_text())
    except (OSError, ValueError):
        return {}  # the verb says what is wrong


def _config(config):
    return _json(config, config) if isinstance(config, dict) else os.fspath(config)


# A class in a config is named by its file; a name relative to the working directory only stands in a dict.
def _json(value, config):
    def plain(value):
        if isinstance(value, type):
            return _name_of(value, absolute=not isinstance(config, dict))
        if isinstance(value, os.PathLike):
            return os.fspath(value)
        if hasattr(value, "tolist"):  # numbers and arrays of numpy
            return value.tolist()
        raise Error(f"config: {value!r} cannot be written as JSON")

    try:
        return json.dumps(value, default=plain, allow_nan=False)
    except ValueError as error:
        raise Error(f"config: {error}") from error


def _word(value):
    if isinstance(value, type):
        return _name_of(value)
    if isinstance(value, dict):
        return ":".join([_word(value["type"])] + [f"{key}={value[key]}" for key in value if key != "type"])
    return os.fspath(value) if isinstance(value, os.PathLike) else str(value)


_given = {}  # classes that a caller gave, by their names
_loaded = {}  # modules of files, by the file and the time of its last change


def _name_of(policy, absolute=False):
    file = getattr(sys.modules.get(policy.__module__), "__file__", None)
    if file is None:  # of an interactive session: a store must tell its versions apart
        file = f"{policy.__module__}-{_fingerprint(policy)}.py"
    else:
        file = os.path.abspath(file) if absolute else os.path.relpath(file)
    name = f"{file}:{policy.__qualname__}"
    _given[name] = policy
    return name


def _fingerprint(policy):
    codes = [member.__code__ for member in vars(policy).values() if hasattr(member, "__code__")]
    print_of_all = 0
    for code in codes:  # grows by what is nested
        nested = [constant for constant in code.co_consts if hasattr(constant, "co_code")]
        codes += nested
        text = repr((code.co_code, code.co_names, [c for c in code.co_consts if c not in nested]))
        print_of_all = zlib.crc32(text.encode(), print_of_all)
    values = {name: getattr(value, "__defaults__", value) for name, value in vars(policy).items() if name[:2] != "__" or callable(value)}
    return f"{zlib.crc32(repr(values).encode(), print_of_all):08x}"


def _class_of(name, file):
    if name in _given:
        return _given[name]
    if not os.path.isfile(file):
        raise FileNotFoundError(f"there is no {file}; a name in a config is relative to the config's folder, so give a whole path")
    key = os.path.realpath(file), os.stat(file).st_mtime_ns
    if key not in _loaded:
        spec = importlib.util.spec_from_file_location(Path(file).stem, file)
        module = importlib.util.module_from_spec(spec)
        sys.path.insert(0, os.path.dirname(key[0]))
        try:
            spec.loader.exec_module(module)
        finally:
            sys.path.pop(0)
        _loaded[key] = module
    found = _loaded[key]
    for part in name.rpartition(".py:")[2].split("."):
        found = getattr(found, part)
    return found


def _frame(rows):
    try:
        import pandas
    except ImportError:
        return rows
    return pandas.DataFrame(rows)


def _frame_of_csv(text):
    try:
        import pandas
    except ImportError:
        import csv

        return [{key: _value(cell) for key, cell in row.items()} for row in csv.DictReader(io.StringIO(text))]
    return pandas.read_csv(io.StringIO(text))


def _value(cell):
    for number in int, float:
        try:
            return number(cell)
        except ValueError:
            pass
    return cell or None
