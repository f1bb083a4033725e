#!/usr/bin/env bash
# Does tools/report/fetch get what the lock pins, one file of it or all, and nothing else? From a registry made here. Skips
# (77) where no server can listen on 127.0.0.1.
#   tests/report/fetch.sh
set -euo pipefail
fetch=$(realpath "$(dirname "$0")/../../tools/report/fetch")
work=$(mktemp -d)
server=''
finish() { [[ -z $server ]] || kill "$server"; rm -rf "$work"; }
trap finish EXIT
fail() { echo "FAILED: $*" >&2; exit 1; }

mkdir -p "$work"/registry/{charts,other}/-/ "$work"/package/dist "$work"/project
echo "draws" >"$work/package/dist/charts.js"
echo "{}" >"$work/package/package.json"
tar -czf "$work/registry/charts/-/charts-1.2.3.tgz" -C "$work" package
echo "not what was locked" >"$work/registry/other/-/other-4.5.6.tgz"
cp "$fetch" "$work/project"
integrity=sha512-$(python3 -c 'import base64, hashlib, sys
print(base64.b64encode(hashlib.sha512(open(sys.argv[1], "rb").read()).digest()).decode())' "$work/registry/charts/-/charts-1.2.3.tgz")
cat >"$work/project/package-lock.json" <<JSON
{ "packages": {
    "node_modules/charts": {
      "version": "1.2.3",
      "integrity": "$integrity",
      "dependencies": {"more": "1"}
    },
    "node_modules/other": {
      "version": "4.5.6",
      "integrity": "$integrity"
    } } }
JSON
python3 -u -m http.server --bind 127.0.0.1 --directory "$work/registry" 0 >"$work/log" 2>&1 &
server=$!
for _ in {1..100}; do grep -q 'port [0-9]' "$work/log" && break; sleep 0.1; done
grep -q 'port [0-9]' "$work/log" || { echo "skipped: no server can listen on 127.0.0.1 here: $(tail -n 1 "$work/log")"; exit 77; }
registry=http://127.0.0.1:$(sed -n 's/.* port \([0-9]*\) .*/\1/p' "$work/log" | head -n 1)/
cd "$work/project"
export npm_config_registry=$registry no_proxy=127.0.0.1

./fetch charts/dist/charts.js 2>err || fail "one file: $(cat err)"
[[ $(cat node_modules/charts/dist/charts.js) == draws && ! -e node_modules/charts/package.json ]] || fail "one file and no other"
echo "mine" >node_modules/charts/dist/charts.js
./fetch charts/dist/charts.js
[[ $(cat node_modules/charts/dist/charts.js) == mine ]] || fail "what was there was fetched again"
rm -r node_modules
./fetch charts 2>err || fail "a package: $(cat err)"
[[ -e node_modules/charts/package.json && -e node_modules/charts/dist/charts.js ]] || fail "the whole package"
refuses() { # PATTERN WANTED..
  local pattern=$1
  shift
  if ./fetch "$@" 2>err; then fail "$* was fetched"; fi
  grep -q "^moesim: $pattern" err && (($(wc -l <err) == 1)) || fail "$*: $(cat err)"
  [[ ! -e node_modules/$1 ]] || fail "$* is there"
}
refuses "other 4.5.6 could not be fetched: its content is not what package-lock.json says" other
refuses "package-lock.json does not pin unknown" unknown
rm -r node_modules
kill "$server" && wait "$server" 2>/dev/null || true
server=''
refuses "charts 1.2.3 could not be fetched: " charts
echo "all good"
