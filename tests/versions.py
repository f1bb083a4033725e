#!/usr/bin/env python3
"""Do the build, CITATION.cff, CHANGELOG.md and the program hold the same version?

  tests/versions.py MOESIM"""
import pathlib, re, subprocess, sys

root = pathlib.Path(__file__).resolve().parents[1]


def found(file, pattern):
    match = re.search(pattern, (root / file).read_text(), re.MULTILINE)
    return match.group(1) if match else "none"


said = subprocess.run([sys.argv[1], "--version"], capture_output=True, text=True, check=True).stdout
versions = {
    "CMakeLists.txt": found("CMakeLists.txt", r"^project\(moesim VERSION (\S+)"),
    "CITATION.cff": found("CITATION.cff", r"^version: \"?([^\"\s]+)"),
    "CHANGELOG.md": found("CHANGELOG.md", r"^## (\S+)"),
    "moesim --version": said.split()[-1],
}
for place, version in versions.items():
    print(f"{place}: {version}")
if len(set(versions.values())) != 1 or "none" in versions.values():
    print("FAILED: the versions differ; write the version of CMakeLists.txt into the other files")
    sys.exit(1)
