#!/usr/bin/env bash
# Do the packages hold all that the program needs? Makes both with cpack, unpacks both, and runs the program from there.
#   tests/packages.sh BUILD
set -euo pipefail
build=$(realpath "$1")
for needed in cpack dpkg-deb dpkg-shlibdeps file; do
  command -v "$needed" >/dev/null || { echo "skipped: $needed is not installed (tools/setup --tests)"; exit 77; }
done
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
fail() { echo "FAILED: $*" >&2; exit 1; }

cpack --config "$build/CPackConfig.cmake" -B "$work" >log 2>&1 || fail "cpack: $(tail -n 20 log)"
version=$(sed -n 's/^CMAKE_PROJECT_VERSION:STATIC=//p' "$build/CMakeCache.txt")
deb=$(echo moesim_"$version"_*.deb) archive=$(echo moesim-"$version"-linux-*.tar.gz)
for package in libfmt libspdlog libtbb libsqlite3 zlib1g libminizip; do
  dpkg-deb --field "$deb" Depends | grep -q "$package" || fail "$deb does not depend on $package"
done
[[ $(dpkg-deb --field "$deb" Recommends) == gnuplot-nox ]] || fail "$deb does not recommend gnuplot-nox"
dpkg-deb --extract "$deb" deb
tar -xzf "$archive"

# works FOLDER: the program there runs on the data beside it, whatever the folder is called.
works() {
  local program=$1/bin/moesim
  [[ -f $1/share/doc/moesim/copyright ]] || fail "$1 has no licence"
  grep -q '^## moesim plan$' "$1/share/doc/moesim/verbs.md" || fail "$1 has no help of the verbs"
  grep -q '^.SH MOESIM PLAN$' "$1/share/man/man1/moesim.1" || fail "$1 has no manual page"
  [[ -z $(find "$1" -name '*.hpp' -o -name '*.a' -o -name '*.cmake') ]] || fail "$1 holds what only developers need"
  # README's paths are those of a clone; a package has the files beside its data.
  "$program" check configs/quick.json >checked 2>&1 || fail "$1: configs/quick.json is not found: $(cat checked)"
  "$program" replay --trace traces/samples/small --gpus 8 --batch 8 >replayed 2>&1 || fail "$1: traces/samples: $(cat replayed)"
  cp "$1/share/moesim/hardware/gpus/h100.json" "$1/share/moesim/hardware/gpus/only_here.json"
  "$program" list gpus >gpus || fail "$1: list gpus"
  grep -q only_here gpus || fail "$1: the program reads the data of another folder"
  rm "$1/share/moesim/hardware/gpus/only_here.json"
  "$program" run "$1/share/moesim/configs/quick.json" --set /workload/requests=64 --json >"$(basename "$1").json" ||
    fail "$1: run"
}
works "$work/deb/usr"
works "$work/${archive%.tar.gz}"
cmp usr.json "${archive%.tar.gz}.json" || fail "the packages give different results"
# The archive carries its libraries.
! ldd "${archive%.tar.gz}/bin/moesim" | grep -E 'libfmt|libspdlog|libtbb|libsqlite3|libminizip' | grep -v "$work" ||
  fail "the archive needs libraries of the system"
echo "all good: $deb, $(du -k "$deb" | cut -f1) KB; $archive, $(du -k "$archive" | cut -f1) KB"
