#!/usr/bin/env bash
# Is whatever can be wrong with a sweep and its stores said in one line, with nothing lost?
#   tests/stores.sh MOESIM
set -u
moesim=$(realpath "$1")
source_dir=$(realpath "$(dirname "$0")/..")
work=$(mktemp -d)
trap 'umount "$work/disk" 2>/dev/null; rm -rf "$work"' EXIT
cd "$work" || exit 1
failures=0

fail() { echo "FAILED: $*" >&2; failures=$((failures + 1)); }

# refuses WHAT PATTERN ARGS..: exit 2, nothing on stdout, one line on stderr that matches the pattern.
refuses() {
  local what=$1 pattern=$2
  shift 2
  "$moesim" "$@" >out 2>err
  local code=$?
  sed -i "/^info: [0-9]* of [0-9]* points checked/d" err  # progress, on a busy machine
  ((code == 2)) || fail "$what: exit $code, not 2: $(cat err)"
  [[ -s out ]] && fail "$what: wrote to stdout"
  (($(wc -l <err) == 1)) || fail "$what: not one line: $(cat err)"
  grep -Eq -- "$pattern" err || fail "$what: \"$(cat err)\" does not match \"$pattern\""
}
# on_terminal ARGS..: moesim on a pseudo-terminal.
on_terminal() { python3 -c 'import pty, sys; sys.exit(pty.spawn(sys.argv[1:]) >> 8)' "$moesim" "$@"; }
terminal=1
python3 -c 'import pty; pty.openpty()' 2>/dev/null ||
  { terminal=''; echo "skipped: no pseudo-terminal here, so no plots and bars on a terminal"; }
# sweep_of FILE KEYS: a sweep of the tiny experiment.
sweep_of() { echo "{\"base\": \"$source_dir/tests/tiny.json\", $2}" >"$1"; }
rows() { sqlite3 "$1" "SELECT config, status, error, report FROM points ORDER BY config_hash"; }
unchanged() { cmp -s "$1" "$1.before" || fail "$2: the store was changed"; }

sweep_of six.json '"axes": {"/workload/lengths/prompt": [4, 5, 6], "/workload/lengths/output": [2, 3]}'
"$moesim" sweep six.json -o six.sqlite >out 2>/dev/null || fail "a sweep"
(($(rows six.sqlite | wc -l) == 6)) || fail "not six points"
# The same command runs nothing anew, and says its points as the store's view does.
"$moesim" sweep six.json -o six.sqlite --json --csv six.csv >out 2>/dev/null || fail "sweep --json --csv"
"$moesim" pareto six.sqlite --by /workload/lengths/output --baseline /workload/lengths/prompt=4 --candidate /workload/lengths/prompt=6 \
  --json --csv frontier.csv >frontier 2>/dev/null || fail "pareto --json"
python3 - <<'PY' || fail "JSON and CSV of a store"
import csv, json, sqlite3
text = lambda value: "" if value is None else value if isinstance(value, str) else json.dumps(value)
connection = sqlite3.connect("six.sqlite")
connection.row_factory = sqlite3.Row
stored = [dict(row) for row in connection.execute("select * from metrics")]
for said, file, in ("out", "six.csv"), ("frontier", "frontier.csv"):
    points = json.load(open(said))["points"]
    assert [{key: text(value) for key, value in point.items()} for point in points] == list(csv.DictReader(open(file))), file
    assert len(points) == 6
points = json.load(open("out"))["points"]
for point, row in zip(points, stored):
    assert {key: point[key] for key in row} == row and point["error"] is None, (point, row)
gain = json.load(open("frontier"))["gain"]["groups"]
assert [group["group"] for group in gain] == [{"output": 2}, {"output": 3}], gain
PY
sweep_of half.json '"axes": {"/workload/lengths/prompt": [4, 5000000]}'
"$moesim" sweep half.json -o half.sqlite --json >out 2>/dev/null
python3 -c 'import json; done, other = json.load(open("out"))["points"]; assert (done["status"], other["status"], bool(other["error"]),
  other["output_throughput"]) == ("done", "infeasible", True, None), other' || fail "sweep --json of a point that cannot be run"
refuses "--json of what is only sent to Slurm" '--json, --csv: nothing is run yet' sweep six.json -o six.sqlite --json --launcher slurm

# Sweep files.
sweep_of bad.json '"axes": {"/placment/replication": [1, 2]}'
refuses "an unknown axis" 'base has no "/placment"' sweep bad.json -o bad.sqlite
sweep_of bad.json '"axes": {"/placement/replicaton": [1, 2]}'
refuses "an unknown key as an axis" 'unknown key "replicaton"; did you mean "replication"' sweep bad.json -o bad.sqlite
sweep_of bad.json '"axes": {"/seed": []}'
refuses "an empty axis" '"/seed" needs a list of at least one value' sweep bad.json -o bad.sqlite
[[ -e bad.sqlite ]] && fail "a refused sweep left a store"
sweep_of changed.json '"axes": {"/workload/lengths/prompt": [4, 5, 7]}'
cp six.sqlite six.sqlite.before
refuses "a changed sweep" 'six.sqlite: holds 4 points that this sweep does not have' sweep changed.json -o six.sqlite
unchanged six.sqlite "a changed sweep"

# Stores.
cp six.sqlite other.sqlite
sqlite3 other.sqlite "UPDATE meta SET schema_version = 99"
cp other.sqlite other.sqlite.before
for verb in "sweep six.json -o" "pareto" "sweep --merge six.sqlite -o"; do
  # shellcheck disable=SC2086
  refuses "$verb: another schema" 'other.sqlite: is a store of schema version 99, this moesim reads' $verb other.sqlite
done
unchanged other.sqlite "another schema"
head -c 9000 six.sqlite >cut.sqlite
cp cut.sqlite cut.sqlite.before
refuses "a store cut short" 'cut.sqlite: is damaged or cut short' sweep six.json -o cut.sqlite
refuses "a store cut short, read" 'cut.sqlite: is damaged or cut short' pareto cut.sqlite
unchanged cut.sqlite "a store cut short"
refuses "no store" 'none.sqlite: there is no such store' pareto none.sqlite
refuses "a store in a file" 'cannot be opened or written' sweep six.json -o other.sqlite/six.sqlite
refuses "a store that is a folder" 'cannot be opened or written' sweep six.json -o "$work"

python3 - <<'PY' &
import sqlite3, time
database = sqlite3.connect("six.sqlite", isolation_level=None)
database.execute("BEGIN EXCLUSIVE")
open("is_locked", "w")
time.sleep(600)  # until it is killed: longer than any wait for the lock
PY
locker=$!
until [[ -e is_locked ]]; do sleep 0.05; done
refuses "a locked store" 'six.sqlite: is locked by another program' sweep six.json -o six.sqlite
kill "$locker" 2>/dev/null
wait "$locker" 2>/dev/null
unchanged six.sqlite "a locked store"

# A full disk, which then grows.
mkdir disk
if mount -t tmpfs -o size=96k tmpfs disk 2>/dev/null; then
  refuses "a full disk" 'disk/six.sqlite: cannot be written, is the disk full\? What was finished is kept' \
    sweep six.json -j 1 -o disk/six.sqlite
  kept=$(sqlite3 disk/six.sqlite "SELECT count(*) FROM points WHERE status = 'done'")
  ((kept > 0 && kept < 6)) || fail "a full disk: $kept points are kept"
  mount -o remount,size=4m disk
  "$moesim" sweep six.json -o disk/six.sqlite >/dev/null 2>err || fail "the sweep does not go on: $(cat err)"
  grep -q "$kept of 6 points were done before" err || fail "a finished point was run again"
  cmp -s <(rows six.sqlite) <(rows disk/six.sqlite) || fail "a full disk: another result"
  umount disk
else
  echo "skipped: no tmpfs can be mounted here, so no full disk"
fi

# Shards and their merge.
refuses "shard 0" 'expected I/N' sweep six.json -o s.sqlite --shard 0/2
refuses "not a shard" 'expected I/N' sweep six.json -o s.sqlite --shard 1-2
refuses "more shards than points" 'has 6 points' sweep six.json -o s.sqlite --shard 7/7
refuses "a shard on a cluster" 'excludes' sweep six.json -o s.sqlite --shard 1/2 --launcher slurm
for i in 1 2 3 4; do
  "$moesim" sweep six.json -o shard$i.sqlite --shard $i/4 >/dev/null 2>&1 || fail "shard $i"
done
"$moesim" sweep --merge shard{1,2,3,4}.sqlite -o merged.sqlite >out 2>&1 || fail "merge: $(cat out)"
in_order() { sqlite3 "$1" "SELECT config_hash FROM points ORDER BY rowid"; }
cmp -s <(in_order six.sqlite) <(in_order merged.sqlite) || fail "merged points are not in the order of the sweep"
cmp -s <(rows six.sqlite) <(rows merged.sqlite) || fail "merged shards give another result"
sqlite3 merged.sqlite .dump >merged.before
"$moesim" sweep --merge shard{4,1}.sqlite -o merged.sqlite >/dev/null 2>&1 || fail "merging again"
cmp -s <(sqlite3 merged.sqlite .dump) merged.before || fail "merging again changed the store"
sqlite3 shard2.sqlite "UPDATE points SET report = '{}'"
refuses "contradictory rows" 'merged.sqlite: point [0-9a-f]+ has another report than in shard2.sqlite' \
  sweep --merge shard{1,2}.sqlite -o merged.sqlite
cmp -s <(sqlite3 merged.sqlite .dump) merged.before || fail "a refused merge changed the store"
"$moesim" sweep changed.json -o changed.sqlite >/dev/null 2>&1 || fail "the changed sweep"
refuses "stores of two sweeps" 'changed.sqlite: holds another sweep than shard1.sqlite' \
  sweep --merge shard1.sqlite changed.sqlite -o new.sqlite
[[ -e new.sqlite ]] && fail "a refused merge left a store"
(PATH=/nowhere && exec "$moesim" sweep six.json -o s.sqlite --launcher slurm) >out 2>err
grep -q '^moesim: sbatch cannot be run' err || fail "no Slurm: $(cat err)"

# Stores that somebody edited.
cp six.sqlite edited.sqlite
sqlite3 edited.sqlite "UPDATE meta SET sweep = '{\"axes\": \"x\"}'"
refuses "a sweep without axes" 'edited.sqlite: has a sweep whose "axes" is not {"/pointer": setting}' pareto edited.sqlite
sqlite3 edited.sqlite "DELETE FROM points" "UPDATE meta SET sweep = '{}'"
refuses "a store without points" 'no finished point \(no points\)' pareto edited.sqlite
version=$(sqlite3 six.sqlite "SELECT moesim FROM meta")
[[ $version =~ ^[0-9.]+\ \([0-9a-f]{16}\)$ ]] || fail "the store does not say what wrote it: $version"
"$moesim" sweep six.json -o six.sqlite >/dev/null 2>err || fail "a sweep that is done"
grep -q 'results may differ' err && fail "the same moesim is said to be another"
sqlite3 six.sqlite "UPDATE meta SET moesim = '0.0.1 (0)'"
"$moesim" sweep six.json -o six.sqlite >/dev/null 2>err || fail "a sweep that another version did"
grep -q 'points are of moesim 0.0.1 (0), this is .*: results may differ' err || fail "another version: $(cat err)"
# As moesim wrote it before it noted versions.
sqlite3 six.sqlite "ALTER TABLE meta DROP COLUMN moesim"
"$moesim" sweep six.json -o six.sqlite >/dev/null 2>err || fail "a store without versions: $(cat err)"
grep -q 'version that was not noted' err || fail "a store without versions: $(cat err)"

# A routing trace that changes in place makes its points others.
"$moesim" trace generate --model "$source_dir/models/zoo/olmoe_1b_7b.json" --gating uniform -o trace >/dev/null ||
  fail "trace generate"
python3 - "$source_dir/tests/tiny.json" <<'PY'
import json, os, sys
tiny = json.load(open(sys.argv[1]))
for key in "cluster", "model": tiny[key] = os.path.join(os.path.dirname(sys.argv[1]), tiny[key])
tiny["workload"]["gating"] = {"type": "recorded", "trace": "trace", "adapt": True}
json.dump({"base": tiny, "axes": {"/seed": [1, 2]}}, open("recorded.json", "w"))
PY
"$moesim" sweep recorded.json -o recorded.sqlite >out 2>err || fail "a sweep of a recorded trace: $(cat err)"
"$moesim" sweep recorded.json -o recorded.sqlite 2>&1 >out | grep -q '2 of 2 points were done before' || fail "not resumed"
rm -r trace && "$moesim" trace generate --model "$source_dir/models/zoo/olmoe_1b_7b.json" --gating uniform --seed 2 -o trace \
  >/dev/null
refuses "another trace in the same place" 'recorded.sqlite: holds 2 points that this sweep does not have' \
  sweep recorded.json -o recorded.sqlite

# Plots, as files and as letters.
if command -v gnuplot >/dev/null; then
  # What is set in a config reaches gnuplot as a name in its data, whatever it says.
  python3 - "$source_dir/tests/tiny.json" <<'PY'
import json, sys
texts = ["a\n!touch PWNED1\n", "b' ; system('touch PWNED2') #", 'c" . system("touch PWNED3") . "', "d`touch PWNED4`",
         "e\n\n\n1 1\n", "|touch PWNED5", "<touch PWNED6", "!touch PWNED7", "@x $(touch PWNED8) \\", "\r\n\x1b\x7f f",
         "EOD\n!touch PWNED9\n"]
json.dump({"base": sys.argv[1], "axes": {"/$schema": texts}}, open("texts.json", "w"))
PY
  "$moesim" sweep texts.json -o texts.sqlite >/dev/null 2>err || fail "a sweep of texts: $(cat err)"
  for ending in svg png pdf; do
    "$moesim" pareto texts.sqlite --by '/$schema' --plot texts.$ending >/dev/null 2>err || fail "texts.$ending: $(cat err)"
  done
  grep -q 'touch PWNED1' texts.svg || fail "a name does not stand in the plot"
  [[ -z $terminal ]] || on_terminal pareto texts.sqlite --by '/$schema' >plot || fail "texts on a terminal"
  ls PWNED* 2>/dev/null && fail "a text of a store was run as a command"
  for ending in svg png pdf; do
    "$moesim" pareto six.sqlite --plot six.$ending >/dev/null || fail "pareto --plot six.$ending"
    [[ -s six.$ending ]] || fail "six.$ending is empty"
  done
  refuses "a plot of no kind" 'ends in .svg, .png or .pdf' pareto six.sqlite --plot six.jpg
  refuses "a plot in a file" 'cannot be written' pareto six.sqlite --plot six.json/six.svg
  if [[ -n $terminal ]]; then
    on_terminal pareto six.sqlite --by /workload/lengths/output >plot || fail "pareto on a terminal"
    grep -q 'output 2 *A' plot || fail "no plot on a terminal"
    (($(tr -d '\r' <plot | wc -L) <= 100)) || fail "the plot is wider than 100 columns"
  fi
else
  echo "skipped: no gnuplot, so no plots"
fi

# Ctrl-C: the points in flight are finished, the rest waits.
sweep_of long.json '"set": {"/workload/requests": 8000, "/workload/lengths/output": 40},
  "axes": {"/workload/lengths/prompt": [4, 6, 8, 10, 12, 14]}'
begin=$SECONDS
"$moesim" sweep long.json -o long.sqlite >/dev/null 2>err &
process=$!
until (($(sqlite3 long.sqlite "SELECT count(*) FROM points WHERE status = 'done'" 2>/dev/null || echo 0) > 0)); do
  sleep 0.05
done
kill -INT $process
wait $process
(($? == 130)) || fail "Ctrl-C: not exit 130"
grep -q 'the same command runs the other' err || fail "Ctrl-C: $(cat err)"
grep -q $'\r' err && fail "a bar where there is no terminal"
# Lines begin after five seconds, and a fast machine may have ended by then.
((SECONDS - begin < 8)) || grep -q 'info: [0-9]* of 6 points' err || fail "no plain lines of progress"
# The rest, on a terminal: a bar that is drawn over.
if [[ -n $terminal ]]; then
  on_terminal sweep long.json -o long.sqlite >bar || fail "the sweep does not go on"
  grep -q $'\r\[#*\.*\] [0-9]* of [0-9]* points, .* left' bar || fail "no bar on a terminal"
else
  "$moesim" sweep long.json -o long.sqlite >/dev/null 2>err || fail "the sweep does not go on: $(cat err)"
fi

if ((failures > 0)); then
  echo "$failures failed" >&2
  exit 1
fi
echo "all good"
