#!/usr/bin/env python3
"""Do the recipes of CONTRIBUTING compile as they are written: a file next to the policies, a declaration and a row?

  tests/recipes.py BUILD

Takes each row of "Where does my change go?" that says `FOLDER/policies/NAME.cpp`, in a copy of the sources: the file of the
first policy to begin with becomes a policy `recipe`, as the page of the folder tells to copy it, and the table gets a
declaration and a row. The compiler then reads both files with the options of BUILD."""
import json, pathlib, re, shlex, shutil, subprocess, sys, tempfile

root = pathlib.Path(__file__).resolve().parents[1]


def recipes():
    """(folder of policies, file of the table, policy to begin with) of each row that has them."""
    rows = re.findall(r"^\|[^|]*\| `([\w/]+)/policies/NAME\.cpp`[^|]*\| `([\w/.]+)` \| `(\w+)`", (root / "CONTRIBUTING.md").read_text(), re.M)
    return [(root / folder / "policies", root / table, policy) for folder, table, policy in rows]


def constructor_of(table, policy):
    """Name of the function that the policy's row gives."""
    row = re.search(rf'\{{"{policy}",(?:[^{{}}"]|"[^"]*")*?(make_\w+)', table)
    if not row:
        raise SystemExit(f"FAILED: there is no row \"{policy}\" with a make_NAME")
    return row.group(1), row.start()


def whole_row(table, start):
    """The row that begins there, up to its closing brace."""
    depth, text = 0, False
    for at in range(start, len(table)):
        if table[at] == '"' and table[at - 1] != "\\":
            text = not text
        if not text:
            depth += {"{": 1, "}": -1}.get(table[at], 0)
        if depth == 0:
            return table[start:at + 1]
    raise SystemExit("FAILED: a row has no end")


def compiled(file, options, folder):
    done = subprocess.run([*options, "-fsyntax-only", "-iquote", str(file.parent), str(file)], cwd=folder, capture_output=True, text=True)
    return "" if done.returncode == 0 else done.stderr


def options_of(build):
    """The compiler and its options for a file of sim, without the files that it reads and writes."""
    commands = json.loads((build / "compile_commands.json").read_text())
    command = next(c for c in commands if re.search(r"sim.*\.cxx$|/sim/.*\.cpp$", c["file"]))
    words = [w for w in shlex.split(command["command"]) if "ccache" not in w]
    kept, skip = [], False
    for word in words:
        if skip or word in ("-c", "-Winvalid-pch") or word == command["file"]:
            skip = False
        elif word in ("-o", "-include", "-MF", "-MT", "-MQ"):
            skip = True
        elif word not in ("-MD", "-MMD"):
            kept.append(word)
    return kept, command["directory"]


def main():
    options, directory = options_of(pathlib.Path(sys.argv[1]).resolve())
    failures, tried = 0, recipes()
    if len(tried) < 8:
        raise SystemExit(f"FAILED: CONTRIBUTING has {len(tried)} recipes of policies; expected at least 8")
    with tempfile.TemporaryDirectory() as name:
        work = pathlib.Path(name)
        for policies, table_file, policy in tried:
            table = table_file.read_text()
            maker, start = constructor_of(table, policy)
            source = next((f for f in sorted(policies.glob("*.cpp")) if re.search(rf"\b{maker}\(", f.read_text())), None)
            if source is None:
                print(f"FAILED: no file of {policies.relative_to(root)} defines {maker}")
                failures += 1
                continue
            row = whole_row(table, start)
            # The table may keep more of a policy than its entry.
            if table[start - 1] == "{" and re.match(r"\s*,\s*[a-z]", table[start + len(row):]):
                row = whole_row(table, start - 1)
                start -= 1
            copied = re.sub(rf"\b{maker}\b", "make_recipe", row).replace(f'"{policy}"', '"recipe"', 1)
            added = table[:start] + copied + ",\n" + table[start:]
            # Makers are declared in one list, or each by itself.
            added = re.sub(rf"\b{maker}\b(?=[,;])", f"{maker}, make_recipe", added, count=1)
            added = re.sub(rf"^([^\n/]*)\b{maker}(\([^;]*\);)", rf"\1{maker}\2\n\1make_recipe\2", added, count=1, flags=re.M)
            where = work / policies.relative_to(root).parent
            (where / "policies").mkdir(parents=True)
            new = where / "policies/recipe.cpp"
            new.write_text(re.sub(rf"\b{maker}\b", "make_recipe", source.read_text()))
            changed = where / table_file.name
            changed.write_text(added)
            for file in (new, changed):
                if wrong := compiled(file, options, directory):
                    print(f"FAILED: {file.relative_to(work)}, copied from {policy}: {wrong[:600]}")
                    failures += 1
    print(f"{len(tried)} recipes" if failures == 0 else f"{failures} failures")
    return 1 if failures else 0


sys.exit(main())
