"""README's figures are those of the pages that commands write: SCORECARD.md (`moesim validate --scorecard`), accuracy.json
(`moesim validate --contrasts`) and RESULTS.md (`moesim reproduce --all`). headlines.py, from anywhere."""
import json, pathlib, re, sys

root = pathlib.Path(__file__).parents[1]
# Paragraphs are wrapped; a line of a table is one.
README = re.sub(r"(?<!\n)\n(?![|\n])", " ", (root / "README.md").read_text())
SCORECARD = (root / "hardware/SCORECARD.md").read_text()
ACCURACY = json.loads((root / "hardware/accuracy.json").read_text())
RESULTS = re.sub(r"\s+", " ", (root / "configs/reproduce/RESULTS.md").read_text()[:4000])
NAMES = {"vLLM": "vllm", "TensorRT-LLM": "trtllm", "SGLang": "sglang", "trtllm-bench": "trtllm, offline"}

failures = []


def compare(what, stated, measured):
    if stated != measured:
        failures.append(f"README.md: {what}: {stated}; the command's page says {measured}")


def percents(text):
    return [float(number) for number in re.findall(r"([\d.]+) %", text)]


def like(stated, measured):
    """Measured figures with as many decimals as those that are stated; a stray half may fall on either side."""
    result = []
    for mine, theirs in zip(stated, measured):
        step = 1 if mine == int(mine) else 0.1
        result.append(mine if abs(mine - theirs) <= step / 2 + 1e-9 else theirs)
    return result


def cells(row):
    return [cell.strip() for cell in row.strip().strip("|").split("|")]


def held_out():
    """Runs, then throughput, TPOT and TTFT as [median, p90], by the scorecard's name of an engine."""
    table = SCORECARD.split("Held out:")[1].split("Fitted:")[0]
    rows = {}
    for line in table.splitlines():
        row = cells(line)
        if len(row) == 11 and row[1].isdigit():
            rows[row[0]] = int(row[1]), *(percents(f"{row[i]} {row[i + 1]}") for i in (2, 5, 8))
    return rows


def accuracy_table():
    measured = held_out()
    rows = [cells(line) for line in README.splitlines() if re.match(r"\| [\w-]+(, disaggregated)?, \d+ \|", line)]
    if len(rows) < 5:
        sys.exit(f"README.md: {len(rows)} rows of the table of accuracy; the table has another form")
    for name, _, _, tpot, ttft in rows:
        engine, *pools, runs = name.split(", ")
        throughput, of_tpot, of_ttft = measured[NAMES[engine] + (", pools" if pools else "")][1:]
        compare(f"runs of {name}", int(runs), measured[NAMES[engine] + (", pools" if pools else "")][0])
        offline = "throughput" in tpot
        for stated, theirs in ((percents(tpot), throughput if offline else of_tpot), (percents(ttft), of_ttft)):
            if stated:
                compare(name, stated, like(stated, theirs))


def stated(pattern):
    found = re.search(pattern, README)
    if found is None:
        sys.exit(f"README.md: no sentence like {pattern!r}")
    return [float(number) for number in found.groups()]


def contrasts():
    signs = {row["differs"]: row for row in ACCURACY["contrasts"]["signs"] if row["quantity"] != "TPOT"}
    share = lambda row, key: round(100 * row[key] / row["pairs"])
    layout, engine = signs["layout"], signs["engine"]
    compare("layouts", stated(r"predicted in (\d+) % of (\d+) pairs \(rule of thumb: (\d+) %\)"),
            [share(layout, "right"), layout["pairs"], share(layout, "rule_right")])
    compare("engines", stated(r"Of two engines the better one was predicted in (\d+) % \((\d+) %\)"),
            [share(engine, "right"), share(engine, "rule_right")])
    regret = ACCURACY["contrasts"]["regret"]["layouts"]
    mine = stated(r"lost ([\d.]+) % of tokens/s per GPU in the mean \((\d+) %\)")
    compare("regret of layouts", mine, like(mine, [100 * regret["mean"], 100 * regret["rule_mean"]]))


def figures():
    within, sign, missed = (int(n) for n in re.search(
        r"(\d+) rows within band .*? (\d+) sign only, (\d+) not reproduced", RESULTS).groups())
    compare("published figures",
            stated(r"Of (\d+) published figures, (\d+) are within their band, (\d+) agree in sign only, and \[(\d+) are not"),
            [within + sign + missed, within, sign, missed])


accuracy_table()
contrasts()
figures()
print("\n".join(failures) or "README's figures are those of the pages")
sys.exit(1 if failures else 0)
