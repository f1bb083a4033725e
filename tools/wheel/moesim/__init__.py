# SPDX-License-Identifier: Apache-2.0
"""moesim simulates clusters that serve Mixture-of-Experts models. The program and its data come with this package.

    report = moesim.run("experiment.json")      # a dict: the report of `moesim run`
    rows = moesim.read("sweep.sqlite")          # a list of dicts, or a pandas.DataFrame where pandas is installed
"""
import json
import os
import sqlite3
import subprocess
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path

__all__ = ["Error", "data", "program", "read", "run"]
__version__ = version("moesim")

program = Path(__file__).resolve().parent / "bin/moesim"
"""The program. Every verb of the command line is available through it."""
data = Path(__file__).resolve().parent / "share/moesim"
"""The folder with the shipped configs, models and hardware."""

LIMIT_NOT_MET = 3  # an exit code of the program; the report is complete


class Error(Exception):
    """The program refused its input or failed; the message is the program's own."""


def run(config, *arguments):
    """Simulates one experiment and returns the report as a dict; `moesim keys report` says what the report holds.

    config: the experiment, a dict or the path of a JSON file. Relative paths in a dict belong to the current folder.
    arguments: further arguments of `moesim run`, as "--set", "/placement/replication=1.5".
    Raises Error when the program refuses the experiment.
    """
    if not isinstance(config, dict):
        return _run_file(config, arguments)
    with tempfile.NamedTemporaryFile("w", dir=".", prefix=".moesim-", suffix=".json") as file:
        json.dump(config, file)
        file.flush()
        return _run_file(file.name, arguments)


def _run_file(file, arguments):
    done = subprocess.run([program, "run", os.fspath(file), "--json", *arguments], capture_output=True, text=True)
    if done.returncode not in (0, LIMIT_NOT_MET):
        raise Error(done.stderr.strip())
    return json.loads(done.stdout)


def read(store):
    """Returns the points of a store that `moesim sweep`, `tune`, `plan` or `study` wrote: a row for each point.

    A row holds the point's `status`, the value of each axis under the axis' short name ("replication"), and the main
    metrics as `moesim keys report` names the metrics. The rows are a pandas.DataFrame where pandas is installed, else
    a list of dicts. Raises Error when the file is not a store.
    """
    try:
        connection = sqlite3.connect(f"{Path(store).resolve().as_uri()}?mode=ro", uri=True)
        try:
            found = connection.execute("select * from metrics")
            columns = [column[0] for column in found.description]
            rows = found.fetchall()
        finally:
            connection.close()
    except sqlite3.Error as error:
        raise Error(f"{store}: not a store of moesim: {error}") from error
    try:
        import pandas
    except ImportError:
        return [dict(zip(columns, row)) for row in rows]
    return pandas.DataFrame(rows, columns=columns)


def main():
    """The command `moesim`."""
    os.execv(program, ["moesim", *sys.argv[1:]])
