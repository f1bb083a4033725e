#!/usr/bin/env python3
"""Do the figures of configs/reproduce that take seconds keep the verdicts in their files?

  tests/quick_figures.py MOESIM

Verdicts on wall times of this machine may change under load: where those alone differ, the figure passes."""
import json, pathlib, re, subprocess, sys

root = pathlib.Path(__file__).resolve().parents[1]
if not (root.parent / "shared").exists():
    print("skipped: ../shared is absent")
    sys.exit(77)


def wall_time(figure, row):
    """Whether the value of this row holds a wall time."""
    value = json.dumps(row.get("value"))
    return any("timing" in measured and f'"{name}:/' in value for name, measured in figure["measured"].items())


files = {path.stem: json.loads(path.read_text()) for path in sorted((root / "configs/reproduce").glob("*.json"))}
quick = {name: figure for name, figure in files.items() if figure.get("quick")}
assert len(quick) >= 10, list(quick)
others = [name for name, figure in files.items() if "title" not in figure]
assert not others, f"{others}: no figures; `reproduce --all` would refuse the folder"
failures = 0
for name, figure in quick.items():
    done = subprocess.run([sys.argv[1] + "-lab", "reproduce", name, "--folder", root / "configs/reproduce"], capture_output=True, text=True)
    texts = re.split(r"^  (?! )", done.stdout, flags=re.M)[1:]  # one for each row
    differ = [text for row, text in zip(figure["rows"], texts, strict=True) if "(recorded: " in text and not wall_time(figure, row)]
    failures += len(differ) + (done.returncode not in (0, 3))
    print(f"{name}: {len(texts)} rows, exit {done.returncode}", *differ, sep="\n  FAILED: ")
sys.exit(1 if failures else 0)
