#!/usr/bin/env bash
# Does a sweep of 1,000 points that is killed up to twenty times end with the bytes of an undisturbed one?
#   tests/kill.sh MOESIM
set -euo pipefail
moesim=$(realpath "$1")
source_dir=$(realpath "$(dirname "$0")/..")
# In memory where that is possible: each point is synced to the disk.
work=$(mktemp -d -p /dev/shm moesim-kill.XXXXXX 2>/dev/null || mktemp -d)
process=''
trap '[[ -z $process ]] || kill -KILL "$process" 2>/dev/null; rm -rf "$work"' EXIT
cd "$work"
fail() { echo "FAILED: $*" >&2; exit 1; }
milliseconds() { echo $((${EPOCHREALTIME/./} / 1000)); }

cat >sweep.json <<JSON
{"base": "$source_dir/tests/tiny.json",
 "axes": {"/workload/lengths/prompt": [$(seq -s, 4 43)], "/workload/arrivals/concurrency": [$(seq -s, 1 25)]}}
JSON
start=$(milliseconds)
"$moesim" sweep sweep.json -o whole.sqlite >/dev/null 2>&1
took=$(($(milliseconds) - start))

# A store that was killed is read as any other: what is half-written is rolled back.
count() { sqlite3 killed.sqlite "SELECT count(*) FROM points $1" 2>/dev/null || echo 0; }
kills=0 finished=0 moments=''
while ((kills < 20)); do
  "$moesim" sweep sweep.json -o killed.sqlite >/dev/null 2>&1 &
  process=$!
  # Every other one at any moment, while points are still checked too; the others once a point more is done and a random
  # while later, so that some points are done at the twentieth kill and some are not, however fast the machine is.
  if ((kills % 2 == 1)); then
    for _ in $(seq 2000); do (($(count "WHERE status = 'done'") > finished)) && break; sleep .01; done
  fi
  pause=$((RANDOM % (took / 40 + 1)))
  sleep "$(printf '%d.%03d' $((pause / 1000)) $((pause % 1000)))"
  # A machine that has become faster meanwhile may be done.
  kill -KILL "$process" 2>/dev/null || { ((kills >= 8)) || fail "the sweep was done after $kills kills"; kills=20; }
  wait "$process" 2>/dev/null || true
  process=''
  kills=$((kills + 1))
  finished=$(count "WHERE status = 'done'")
  moments+=" $finished"
done
echo "points done at each kill:$moments"
tr ' ' '\n' <<<"$moments" | grep -qE '^[1-9][0-9]{0,2}$' || fail "no kill fell between the first and the last point"
"$moesim" sweep sweep.json -o killed.sqlite >/dev/null 2>resumed || fail "the sweep cannot go on"
grep -q "$finished of 1000 points were done before" resumed || fail "a finished point was run again"
(($(count '') == 1000)) || fail "not 1,000 rows"
rows() { sqlite3 "$1" "SELECT config, status, report FROM points ORDER BY config_hash"; }
cmp <(rows whole.sqlite) <(rows killed.sqlite) || fail "killed and undisturbed sweeps differ"
echo "all good"
