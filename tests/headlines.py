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
STANDINGS = ["hit", "direction", "contradicted"]
NUMBERS, CLAIMS = {}, collections.Counter()
with open(root / "configs/reproduce/results.csv", newline="") as rows:
    for i, row in enumerate(csv.DictReader(rows)):
        if row["band"] == "ours":
            CLAIMS[row["verdict"]] += 1
        elif row["counts_as"] in STANDINGS:
            paper = json.loads((root / f"configs/reproduce/{row['figure']}.json").read_text())["paper"]
            number = (paper, row["number"] or i)
            NUMBERS[number] = max(NUMBERS.get(number, 0), STANDINGS.index(row["counts_as"]))
NUMBERS_BY = {standing: list(NUMBERS.values()).count(i) for i, standing in enumerate(STANDINGS)}
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
            rows[row[0]] = int(row[1]), *(percents(f"{row[i]} % {row[i + 1]} %") for i in (2, 5, 8))
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
    """Published numbers by the worst of their rows, and moesim's own claims; README and RESULTS say the same."""
    compare("published numbers", stated(r"Of (\d+) published numbers (\d+) are hit, (\d+) agree in direction, and \[(\d+) are contradicted"),
            [len(NUMBERS), *(NUMBERS_BY[standing] for standing in STANDINGS)])
    claims = [CLAIMS[verdict] for verdict in ("within band", "sign only", "not reproduced")]
    compare("claims of moesim's own", stated(r"Of (\d+) claims of moesim's own, (\d+) hold"), [sum(claims), claims[0]])
    page = re.sub(r"\s+", " ", (root / "configs/reproduce/RESULTS.md").read_text())
    of_page = re.search(r"Of (\d+) published numbers (\d+) are hit, .*? Of (\d+) claims of moesim's own, (\d+) hold", page)
    compare("counts", [int(n) for n in of_page.groups()], [len(NUMBERS), NUMBERS_BY["hit"], sum(claims), claims[0]],
            "configs/reproduce/RESULTS.md")


# What pages say of studies: the page, its sentence, and where studies.json (tests/study_figures.py) has its numbers. "less X": a page
# states by how much less, a number without its sign, what X has below zero.
LONGER, EVEN = ("recorded", "even longer"), ("recorded", "even", "most")
CELLS, SMALL = ("recorded", "cells"), ("recorded", "small cells")
CUT, SURE, LIKELY, OFFERED = (("recorded", what) for what in ("cut fastest", "cut sure", "cut likelier than not", "ep 1 fastest"))
saves = lambda model, constants, end: ("recorded", "cut saves", f"{model}, {constants}", end)
GPT, V2 = (lambda end: saves("gpt-oss", "vLLM's kernels", end)), (lambda end: saves("DeepSeek", "vLLM's kernels", end))
MOST = saves("gpt-oss", "family constants", "most"), saves("DeepSeek", "family constants", "most")
free = lambda policy: ("recorded", "faster behind the gather", policy)
best = lambda policy: ("recorded", "faster behind the best exchange", policy)
v3 = lambda charge, *policies: [("presets", "DeepSeek-V3, x 1", f"vLLM's kernels, {charge}", policy) for policy in policies]
ROW = ("metro", "metro fewest", "exact", "hybrid", "ep 4")
pays = lambda policy, rival="none": ("presets", "break-even, DeepSeek-V3, x 1", f"{policy} against {rival}")
PAYS = pays("metro"), pays("metro fewest"), pays("exact")
PACKING = ("prefill", "16 H200", "less packing", "most"), ("prefill", "16 H200", "less packing", "least")
copies = lambda gpus: (("prefill", gpus, "copies change", "least"), ("prefill", gpus, "copies change", "most"))
less_copies = lambda gpus: (("prefill", gpus, "less copies change", "most"), ("prefill", gpus, "less copies change", "least"))
CUT_COSTS = ("prefill", "16 H200", "cut", "least"), ("prefill", "16 H200", "cut", "most")
N, S = r"([\d.]+)", r"([+-][\d.]+)"
RESULTS_PAGE, QUESTIONS, PAPER, REGIMES = "configs/reproduce/RESULTS.md", "tools/docs/questions.md", "tools/docs/paper.md", "tools/lab/study/regimes.md"
SENTENCES = [
    (RESULTS_PAGE, rf"step in {N} of {N} recorded cases, by up to {N} %", LONGER, CELLS, EVEN),
    (RESULTS_PAGE, rf"shortens a prefill step by {N} to {N} % at EP 16. Copies change that by {S} to {S} points, and by {S} to {S} at EP 64",
     *PACKING, *copies("16 H200"), *reversed(copies("64 H200"))),
    (RESULTS_PAGE, rf"decode step in {N} of {N} recorded cases, in {N} with P of .95 or more. In prefill cuts in four cost {N} to {N} %", CUT, SMALL, SURE, *CUT_COSTS),
    (RESULTS_PAGE, rf"exact routing on copies beats no copies in {N} of {N} recorded", best("exact"), CELLS),
    (RESULTS_PAGE, rf"against no replication, below {N} us a layer", pays("exact")),
    (RESULTS_PAGE, rf"steps are {N} to {N} % shorter", *v3("our kernels", "less metro", "less exact")),
    (QUESTIONS, rf"without copies in {N} of {N} recorded cases, by up to {N} %", LONGER, CELLS, EVEN),
    (QUESTIONS, rf"packing without redundant experts shortens a step by {N} to {N} %, and copies change that by {S} to {S} points", *PACKING, *copies("16 H200")),
    (QUESTIONS, rf"copies {N} to {N} points more\. At EP 64", *less_copies("32 H200")),
    (QUESTIONS, rf"At EP 64 it is 5 to 8 %, and {N} to {N} points", *less_copies("64 H200")),
    (QUESTIONS, rf"shortest step in {N} of {N} recorded cases\. P that .*? is .95 or more in {N} and above one half in {N}\. .*? the fastest in {N}\.",
     CUT, SMALL, SURE, LIKELY, OFFERED),
    (QUESTIONS, rf"Cuts save {N} to {N} % on gpt-oss-20b \(MXFP4\), and up to {N} % .*? the most is {N} and {N} %", GPT("least"), GPT("most"), V2("most"), *MOST),
    (QUESTIONS, rf"exact routing on copies beats no copies in {N} of {N} cases", best("exact"), CELLS),
    (QUESTIONS, rf"METRO by id may take {N} us a layer, fewest first {N} us and exact {N} us", *PAYS),
    (QUESTIONS, rf"METRO by id is {N} % faster than no copies, fewest first {N} % and exact {N} %", *v3("our kernels", "less metro", "less metro fewest", "less exact")),
    (QUESTIONS, rf"they are {N} to {N} % slower\. Experts cut over 4 GPUs are {N} % faster", *v3("as published", "metro fewest", "metro", "less ep 4")),
    (QUESTIONS, rf"below .95 in {N} of {N} recorded cases", ("recorded", "nobody sure"), CELLS),
    ("README.md", rf"shortest step in {N} of {N} cases\. P that .*? is .95 or more in {N} and above one half in {N}\. Cuts save {N} to {N} % .*? up to {N} % .*? the fastest in {N}\.",
     CUT, SMALL, SURE, LIKELY, GPT("least"), GPT("most"), V2("most"), OFFERED),
    ("README.md", rf"gains {N} to {N} % at EP 16\. Copies add less than a point there, up to {N} points at EP 32, and {N} to {N} at EP 64",
     *PACKING, ("prefill", "32 H200", "less copies change", "least"), *less_copies("64 H200")),
    ("README.md", rf"steps are {N} to {N} % shorter than without copies\. .*? Cut experts save {N} %", *v3("our kernels", "less metro", "less metro fewest", "less ep 4")),
    (PAPER, rf"longer step in {N} of {N} cases, by up to {N} %", LONGER, CELLS, EVEN),
    (PAPER, rf"METRO by id, deciding free \| shorter than no copies in {N} of {N} cases; each behind its best exchange in {N}", free("metro"), CELLS, best("metro")),
    (PAPER, rf"copies first, free \| in {N} of {N}; best exchange {N}", free("metro fewest"), CELLS, best("metro fewest")),
    (PAPER, rf"exact choice, free \| in {N} of {N}; best exchange {N}", free("exact"), CELLS, best("exact")),
    (PAPER, rf"the shortest step in {N} of {N} cases at 4 tokens per expert and less; P that .*? is .95 or more in {N}, above one half in {N}", CUT, SMALL, SURE, LIKELY),
    (PAPER, rf"as vLLM has it \| in {N} of {N}", OFFERED, SMALL),
    (PAPER, rf"Cuts save {N} to {N} % on gpt-oss-20b, and up to {N} % .*? the most is {N} and {N} %", GPT("least"), GPT("most"), V2("most"), *MOST),
    (PAPER, rf"free \| {S} % \| {S} % \| {S} % \| {S} % \| {S} %", *v3("free", *ROW)),
    (PAPER, rf"our kernels, H200 \| {S} % \| {S} % \| {S} % \| {S} % \| {S} %", *v3("our kernels", *ROW)),
    (PAPER, rf"as published, A100 \| {S} % \| {S} % \| {S} % \| {S} % \| {S} %", *v3("as published", *ROW)),
    (PAPER, rf"to decide: {N} us for METRO by id, {N} us for fewest first, {N} us for exact", *PAYS),
    (PAPER, rf"Exact may take {N} us against them", pays("exact", "ep 4")),
    (PAPER, rf"by {N} to {N} % at EP 16\. Copies change that by {S} to {S} points at EP 16, by {S} to {S} at EP 32 and by {S} to {S} at EP 64\. Cuts in four cost {N} to {N} %",
     *PACKING, *copies("16 H200"), *copies("32 H200"), *copies("64 H200"), *CUT_COSTS),
    (REGIMES, rf"up to 4 tokens per expert\*\*: in {N} of {N} cases\. .*? is .95 or more in {N} of 18, and above one half in {N}\. .*? no policy reaches .95 in {N}", CUT, SMALL, SURE, LIKELY, ("recorded", "nobody sure")),
    (REGIMES, rf"cuts save {N} to {N} % on gpt-oss-20b, and up to {N} %", GPT("least"), GPT("most"), V2("most")),
    (REGIMES, rf"no copies in {N} of {N} cases, by up to {N} %", LONGER, CELLS, EVEN),
    (REGIMES, rf"METRO by id is faster than no copies in {N} of {N}, fewest first in {N}, exact in {N}\. Each behind its best exchange: {N}, {N} and {N}",
     free("metro"), CELLS, free("metro fewest"), free("exact"), best("metro"), best("metro fewest"), best("exact")),
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
            theirs.append(-value if any(name.startswith("less ") for name in place) else value)
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
