#!/usr/bin/env bash
# Does the wheel work for somebody who has only Python? Builds the wheel, installs the wheel offline into a virtual
# environment, and calls the command and the module there.
#   tests/wheel.sh BUILD
set -euo pipefail
build=$(realpath "$1")
cd "$(dirname "$0")/.."
python=
for candidate in /usr/bin/python3 python3; do
  if "$candidate" -c 'import ensurepip, venv, wheel' 2>/dev/null; then python=$candidate; break; fi
done
[[ -n $python ]] || { echo "skipped: python3-venv and python3-wheel are not installed (tools/setup --tests)"; exit 77; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
fail() { echo "FAILED: $*" >&2; exit 1; }

wheel=$(PYTHON=$python tools/python/build "$build" "$work")
"$python" -m venv --system-site-packages "$work/venv"  # for numpy, where it is installed
"$work/venv/bin/pip" install --quiet --no-index --disable-pip-version-check "$wheel" || fail "pip install $wheel"
cp tests/python/policies.py "$work"
cd "$work"

# The libraries are the wheel's own, apart from those of C and C++.
module=$(echo venv/lib/python3*/site-packages/moesim/bin/_moesim*.so)
ldd "$module" | grep -E 'libfmt|libspdlog|libtbb|libsqlite3|libz[.]|libminizip' >libraries
(($(wc -l <libraries) >= 6)) || fail "too few libraries: $(cat libraries)"
! grep -v "$(realpath venv)" libraries >outside || fail "libraries of the system: $(cat outside)"

version=$(sed -n 's/^CMAKE_PROJECT_VERSION:STATIC=//p' "$build/CMakeCache.txt")
[[ $(venv/bin/moesim --version) == "moesim $version" ]] || fail "the command says $(venv/bin/moesim --version)"
venv/bin/moesim list gpus | grep -q h100 || fail "list gpus finds no data"
code=0
venv/bin/moesim run nowhere.json 2>err || code=$?
((code == 2)) || fail "the command ends with $code where the program ends with 2"

cat >tried.py <<'PY'
import json, pathlib, sys
import moesim
assert str(moesim.data).startswith(sys.prefix), moesim.data
shipped = moesim.data / "configs/quick.json"
config = json.loads(shipped.read_text())
for key in "cluster", "model":
    config[key] = (shipped.parent / config[key]).resolve()
config["workload"]["requests"] = 64
before = sorted(pathlib.Path(".").iterdir())
by_dict = moesim.run(config)
assert sorted(pathlib.Path(".").iterdir()) == before, "a file is left behind"
by_path = moesim.run(shipped, set={"/workload/requests": 64})
assert by_dict["metrics"]["completed"] == 64 and by_dict["metrics"] == by_path["metrics"]
for wrong, expected in (({**config, "modle": 1}, "modle"), ("nowhere.json", "nowhere.json")):
    try:
        moesim.run(wrong)
    except moesim.Error as error:
        assert expected in str(error) and len(str(error).splitlines()) == 1, error
    else:
        raise AssertionError(f"{expected} was taken")

rows = moesim.sweep({"base": config, "axes": {"/workload/requests": [32, 64]}}, "store.sqlite")
assert sorted(row["requests"] for row in rows) == [32, 64], rows
served = {row["requests"]: row for row in rows}[64]
assert served["status"] == "done" and served["output_throughput"] == by_path["metrics"]["output_throughput"], served
for wrong in "tried.py", "nowhere.sqlite":
    try:
        moesim.read(wrong)
    except moesim.Error as error:
        assert wrong in str(error)
    else:
        raise AssertionError(f"{wrong} was read")
assert not pathlib.Path("nowhere.sqlite").exists()
PY
venv/bin/python tried.py || fail "the module"

# A policy of Python, with nothing to compile it; without numpy the message says what is missing.
samples=$(venv/bin/python -c 'import moesim; print(moesim.data / "traces/samples/small")')
code=0
PATH=$work/venv/bin venv/bin/moesim replay --trace "$samples" --gpus 8 --routing policies.py:Metro >routed 2>err || code=$?
if venv/bin/python -c 'import numpy' 2>/dev/null; then
  ((code == 0)) && grep -q policies.py:Metro routed || fail "a policy of Python: exit $code, $(cat err)"
else
  ((code == 2)) && grep -q 'install numpy' err || fail "without numpy: exit $code, $(cat err)"
fi

# With pandas the rows are a frame. A module of that name, with the constructor alone, stands in.
mkdir with_pandas
cat >with_pandas/pandas.py <<'PY'
class DataFrame:
    def __init__(self, rows):
        self.rows = rows
PY
PYTHONPATH=with_pandas venv/bin/python -c '
import moesim, pandas
frame = moesim.read("store.sqlite")
assert isinstance(frame, pandas.DataFrame) and len(frame.rows) == 2 and "requests" in frame.rows[0]
' || fail "pandas"
echo "all good: $(basename "$wheel"), $(du -k "$wheel" | cut -f1) KB"
