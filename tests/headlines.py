"""README's figures are those of the pages that commands write: SCORECARD.md (`moesim-lab validate --scorecard`), accuracy.json
(`moesim-lab validate --contrasts`) and results.csv (`moesim-lab reproduce --all`). What README's pages say of studies is what studies.json has
(study_figures.py). headlines.py, from anywhere."""
import collections, csv, json, pathlib, re, sys

root = pathlib.Path(__file__).parents[1]
# Paragraphs are wrapped; a line of a table is one.
README = re.sub(r"(?<!\n)\n *(?![|\n ])", " ", (root / "README.md").read_text())
SCORECARD = (root / "hardware/SCORECARD.md").read_text()
ACCURACY = json.loads((root / "hardware/accuracy.json").read_text())
STUDIES = json.loads((root / "tools/lab/study/studies.json").read_text())
with open(root / "configs/reproduce/results.csv", newline="") as rows:
    RESULTS = collections.Counter((row["band"] == "ours", row["verdict"]) for row in csv.DictReader(rows))
NAMES = {"vLLM": "vllm", "TensorRT-LLM": "trtllm", "SGLang": "sglang", "trtllm-bench": "trtllm, offline"}

failures = []


def compare(what, stated, measured, page="README.md"):
    if stated != measured:
        failures.append(f"{page}: {what}: {stated}; the command's page says {measured}")


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
    compare("layouts", stated(r"predicted in (\d+) % of (\d+) pairs; a rule of thumb finds (\d+) %"),
            [share(layout, "right"), layout["pairs"], share(layout, "rule_right")])
    compare("engines", stated(r"Of two engines the better one was predicted in (\d+) %; a fixed order .*? is right in (\d+) %"),
            [share(engine, "right"), share(engine, "rule_right")])
    regret = ACCURACY["contrasts"]["regret"]["layouts"]
    mine = stated(r"lost ([\d.]+) % of tokens/s per GPU in the mean; the rule's choice lost (\d+) %")
    compare("regret of layouts", mine, like(mine, [100 * regret["mean"], 100 * regret["rule_mean"]]))


def figures():
    """Published figures and moesim's own claims, counted in the rows; README and RESULTS say the same."""
    within, sign, missed = (RESULTS[False, verdict] for verdict in ("within band", "sign only", "not reproduced"))
    compare("published figures",
            stated(r"Of (\d+), some worked by hand, (\d+) are within their band, (\d+) agree in sign only, and \[(\d+) are not"),
            [within + sign + missed, within, sign, missed])
    claims = [RESULTS[True, verdict] for verdict in ("within band", "sign only", "not reproduced")]
    compare("claims of moesim's own", stated(r"Of (\d+) claims of moesim's own, (\d+) hold"), [sum(claims), claims[0]])
    page = re.sub(r"\s+", " ", (root / "configs/reproduce/RESULTS.md").read_text())
    of_page = re.search(r"Of (\d+) published figures (\d+) are .*? Of (\d+) claims of moesim's own, (\d+) hold", page)
    compare("counts", [int(n) for n in of_page.groups()], [within + sign + missed, within, sum(claims), claims[0]],
            "configs/reproduce/RESULTS.md")


# What pages say of studies: the page, its sentence, and where studies.json (tests/study_figures.py) has its numbers. "less X": a page
# states by how much less, a number without its sign, what X has below zero.
RECORDED, PRESETS, PREFILL = "recorded", "presets", "prefill"
V3, PAYS = "DeepSeek-V3, x 1", "break-even, DeepSeek-V3, x 1"
SENTENCES = [
    ("configs/reproduce/RESULTS.md", r"step by ([\d.]+) to ([\d.]+) %, in (\d+) of (\d+) recorded cases",
     (RECORDED, "even least"), (RECORDED, "even most"), (RECORDED, "even longer"), (RECORDED, "cells")),
    ("configs/reproduce/RESULTS.md", r"shortens a prefill step by ([\d.]+) to ([\d.]+) %; 32 redundant experts change that by -([\d.]+) to \+([\d.]+)",
     (PREFILL, "packing saves least"), (PREFILL, "packing saves most"), (PREFILL, "copies change most"), (PREFILL, "less copies change least")),
    ("configs/reproduce/RESULTS.md", r"shorten a decode step by ([\d.]+) to ([\d.]+) %, in (\d+) of (\d+) recorded cases.*?cost ([\d.]+) to ([\d.]+) %",
     (RECORDED, "cut saves least"), (RECORDED, "cut saves most"), (RECORDED, "small cells cut"), (RECORDED, "small cells"),
     (PREFILL, "cut costs least"), (PREFILL, "cut costs most")),
    ("configs/reproduce/RESULTS.md", r"against no replication, below ([\d.]+) us a layer", (PRESETS, PAYS, "exact against none")),
    ("tools/docs/questions.md", r"takes ([\d.]+) to ([\d.]+) % longer than without copies, in (\d+) of (\d+) recorded",
     (RECORDED, "even least"), (RECORDED, "even most"), (RECORDED, "even longer"), (RECORDED, "cells")),
    ("tools/docs/questions.md", r"Packing without redundant experts shortens a step by ([\d.]+) to ([\d.]+) %",
     (PREFILL, "packing saves least"), (PREFILL, "packing saves most")),
    ("tools/docs/questions.md", r"Experts cut over 2 to 8 GPUs shorten a decode step by ([\d.]+) to ([\d.]+) %.*?in (\d+) of (\d+) recorded cases",
     (RECORDED, "cut saves least"), (RECORDED, "cut saves most"), (RECORDED, "small cells cut"), (RECORDED, "small cells")),
    ("tools/docs/questions.md", r"\*\*Below ([\d.]+) us a layer by id, below ([\d.]+) us with fewest",
     (PRESETS, PAYS, "metro against none"), (PRESETS, PAYS, "metro fewest against none")),
    ("tools/docs/questions.md", r"disagree: in (\d+) of (\d+) recorded cases and (\d+) of (\d+) of the presets",
     (RECORDED, "open"), (RECORDED, "cells"), (PRESETS, "open"), (PRESETS, "cells")),
    ("README.md", r"Steps are ([\d.]+) to ([\d.]+) % shorter than without copies", (PRESETS, V3, "less metro"), (PRESETS, V3, "less metro fewest")),
    ("README.md", r"beats whole experts in (\d+) of (\d+) cases\. Steps are ([\d.]+) to ([\d.]+) % shorter",
     (RECORDED, "small cells cut"), (RECORDED, "small cells"), (RECORDED, "cut saves least"), (RECORDED, "cut saves most")),
    ("tools/docs/paper.md", r"longer step in (\d+) of (\d+) cases, by ([\d.]+) to ([\d.]+) %",
     (RECORDED, "even longer"), (RECORDED, "cells"), (RECORDED, "even least"), (RECORDED, "even most")),
    ("tools/docs/paper.md", r"METRO by id, deciding free \| shorter than no copies in (\d+) of (\d+)", (RECORDED, "metro faster"), (RECORDED, "cells")),
    ("tools/docs/paper.md", r"copies first, free \| in (\d+) of (\d+)", (RECORDED, "fewest faster"), (RECORDED, "cells")),
    ("tools/docs/paper.md", r"exact choice, free \| in (\d+) of (\d+)", (RECORDED, "exact faster"), (RECORDED, "cells")),
    ("tools/docs/paper.md", r"the shortest step in (\d+) of (\d+) cases", (RECORDED, "small cells cut"), (RECORDED, "small cells")),
    ("tools/docs/paper.md", r"METRO by id (-[\d.]+) %, fewest first (-[\d.]+) %, exact (-[\d.]+) %, hybrid (-[\d.]+) %, EPLB's split \+([\d.]+) %",
     (PRESETS, V3, "metro"), (PRESETS, V3, "metro fewest"), (PRESETS, V3, "exact"), (PRESETS, V3, "hybrid"), (PRESETS, V3, "even")),
    ("tools/docs/paper.md", r"Exact may take ([\d.]+) us against them", (PRESETS, PAYS, "exact against ep 4")),
    ("tools/docs/paper.md", r"by ([\d.]+) to ([\d.]+) %\. 32 redundant experts change that by -([\d.]+) to \+([\d.]+) points\. Cut experts cost ([\d.]+) to ([\d.]+) %",
     (PREFILL, "packing saves least"), (PREFILL, "packing saves most"), (PREFILL, "copies change most"), (PREFILL, "less copies change least"),
     (PREFILL, "cut costs least"), (PREFILL, "cut costs most")),
]


def studies():
    for page, pattern, *places in SENTENCES:
        text = re.sub(r"\s+", " ", (root / page).read_text())
        found = re.search(pattern, text)
        if found is None:
            failures.append(f"{page}: no sentence like {pattern!r}")
            continue
        mine, theirs = [float(number) for number in found.groups()], []
        for place in places:
            value = STUDIES
            for name in place:
                value = value[name.removeprefix("less ")]
            theirs.append(-value if place[-1].startswith("less ") else value)
        compare(pattern, mine, like(mine, theirs), page)


def laws():
    """Tests that LAWS.md names exist, and laws and known answers that tests name are in LAWS.md."""
    page = (root / "tests/LAWS.md").read_text()
    tests = {file.stem: re.sub(r'"\s*"', "", file.read_text()) for file in (root / "tests").rglob("test_*.cpp")}
    for file, name in re.findall(r"`(test_\w+)`: ([^|]+?) \|", page):
        if name not in tests.get(file, ""):
            failures.append(f"tests/LAWS.md: {file} has no test like {name!r}")
    numbers = {kind: set(re.findall(r"^\| (\d+) \|", part, re.M)) for kind, part in zip(
        ("law", "answer"), (page.replace(page.split("| known answer |")[1].split("##")[0], ""), page.split("| known answer |")[1].split("##")[0]))}
    for file, text in tests.items():
        for kind, number in re.findall(r'\b(law|answer)s? (\d+)', " ".join(re.findall(r'TEST_CASE\(\s*"([^"]*)"', text))):
            if number not in numbers[kind]:
                failures.append(f"{file}: {kind} {number} is not in tests/LAWS.md")


laws()
accuracy_table()
studies()
contrasts()
figures()
print("\n".join(failures) or "the pages' figures are those of the commands")
sys.exit(1 if failures else 0)
