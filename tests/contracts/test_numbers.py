"""Every measured number of the pages is the one that was measured: tests/contracts/numbers/PAGE.toml names its source."""

from __future__ import annotations

import csv
import json
import math
import statistics
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from documents import PAGES, ROOT, name_of
from queries import TOY, Numbers, QueryError, answer, closest, load, normalise, render, toy_claims, uncovered, wrong

from egalitarian.lab.theory import equidistribution as equal
from egalitarian.lab.theory.claims_section3 import _polar_plateau
from egalitarian.lab.theory.distributions import wedge_moments_as_printed
from egalitarian.lab.theory.error import error_on_train
from egalitarian.lab.theory.problem import EqualProblem, ShiftedProblem, start_at
from egalitarian.lab.theory.theorem import gd_path, plateau

FILES = sorted((ROOT / "tests" / "contracts" / "numbers").glob("*.toml"))
NOT_COVERED = ("docs/api.md", "docs/log.md")
"""Made from docstrings; and what was once the case."""
COVERED = [page for page in PAGES if name_of(page) not in NOT_COVERED]


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_the_pages_say_what_was_measured(file: Path) -> None:
    numbers = load(file, ROOT)
    told = wrong(numbers, ROOT)
    assert not told, f"{name_of(numbers.page)} and {name_of(file)} disagree:\n" + "\n\n".join(told)


@pytest.mark.parametrize("page", COVERED, ids=name_of)
def test_every_number_that_looks_measured_has_a_source(page: Path) -> None:
    files = [load(file, ROOT) for file in FILES]
    told = uncovered(page, files, ROOT)
    assert not told, f"{name_of(page)}: neither in a line of tests/contracts/numbers/*.toml nor exempt:\n" + "\n".join(told)


# the toy problem's numbers


def test_the_stored_claims_have_the_verdicts_of_their_values() -> None:
    stored = [line.rpartition(",")[2] for line in (ROOT / TOY).read_text(encoding="utf-8").splitlines()[1:]]
    assert [claim.verdict for claim in toy_claims(ROOT / TOY)] == stored


def test_corrected_every_stored_claim_holds() -> None:
    assert [claim for claim in toy_claims(ROOT / TOY) if not claim.corrected_holds] == []


def test_what_the_errata_compute_and_results_do_not_store() -> None:
    page = normalise((ROOT / "docs" / "errata.md").read_text(encoding="utf-8"))
    acute, eta = (math.pi / 8, math.pi / 4, 3 * math.pi / 8), 0.1
    equals = [EqualProblem(0.01, theta, eta) for theta in acute]
    conditions = [f"{np.linalg.cond(problem.moments.sigma):.0f}" for problem in equals]
    limit, slow = equals[1].population().solution[0], equal.slow_direction(equals[1].moments)
    boxed = [
        equal.plateau_as_printed(EqualProblem(eps, acute[1], eta), start_at(10.0), wedge_moments_as_printed(eps, acute[1]))
        for eps in (0.1, 0.01, 0.001)
    ]
    shifted = ShiftedProblem(0.01, acute[1], 1.0, eta)
    half = plateau(shifted, start_at(100.0)) // 2
    early, halfway = error_on_train(gd_path(shifted, start_at(100.0), [100.0, half]), shifted.eps, shifted.s)
    steep = ShiftedProblem(0.001, acute[0], 1.0, eta)
    lengths = [_polar_plateau(steep, np.array([eta * i / 8, 10.0])) for i in range(8)]
    for text in (
        f"condition number is a constant ({', '.join(conditions)} at pi/8, pi/4, 3pi/8; eps 0.01)",
        f"a fixed direction, ({slow[0]:.2f}, {slow[1]:.2f}) at pi/4",
        f"At pi/4, eps 0.01: mu_* is {limit:.2f}",
        f"With the printed moments: {' / '.join(f'{each:.0f}' for each in boxed)}",
        f"At zeta 100, eps 0.01, theta pi/4 the formula gives {early:.0%} at k = 100 and {halfway:.0%} halfway",
        f"At eps 0.001: {min(lengths):.0f} to {max(lengths):.0f} steps",
    ):
        assert page.find(text.replace("%", " %")), text
    below, above = (ShiftedProblem(0.1, 1.0, s, eta).m1 for s in (0.3026, 0.3027))
    assert below < 1 < above
    assert page.find("m1 > 1 for s > 0.3026")


# the engine, on files of its own

SUMMARY = """\
experiment,method,seed,counts,state,crossed,epochs,differs,seconds,ms_per_epoch
addition-97,egd,0,yes,passed,108,114,,0.3,2
addition-97,egd,1,yes,passed,122,128,,0.5,2
addition-97,egd,2,yes,passed,113,119,,0.4,3
addition-97,egd,3,no,passed,9999,9999,lr,99,99
addition-97,sgd,0,yes,passed,14,20,
addition-97,sgd,1,yes,passed,15,21,
addition-97,sgd,2,yes,not passed,,400,
addition-97,slow,0,yes,not passed,,400,,1,2
addition-97,slow,1,yes,passed,30,36,
addition-97,slow,2,yes,not passed,,500,
addition-97,same,0,yes,passed,9,15,
addition-97,same,1,yes,passed,9,15,
mnist,egd,0,yes,passed,6,12,
mnist,egd,1,yes,passed,5,11,
mnist,egd,2,yes,passed,457,463,
"""
TABLES = """\
# Times

## First

| shape | method | ms | note |
|---|---|---:|---|
| **small** | | | |
| 64 x 194 x 512 | products, exact | 2.4 | |
| 194 x 512 | products, exact | 1.605 | a–b |
| 194 x 512 | products, fast | 8.0e-05 | 12 345 |

## Second

| method | fresh | lr |
|---|---|---|
| EGD | 5 (4–6) | 4 |
| **Addition: a group** | | |
| EGD | 7 (6–8) | 8 |
| EGD | 9 (9–9) | 16 |
"""

CLAIMS = """\
key,where,claim,setting,printed,corrected,measured,standard_error,sigmas,slack,relation,verdict
m1,Section 3,a mean,s=0,0.8,0.8,0.8004,0.0003,4,0,=,holds
m1,Section 3,a mean,s=1,1.6,1.5251,1.52496,0.000396,4,0,=,fails as printed
order (acute),Appendix,an order,eps=0.1 theta=0.25pi,1,1,0.95,0.002,4,0.1,=,holds
order (obtuse),Appendix,an order,eps=0.01 theta=0.75pi,1,1,0.99,0.002,4,0.1,=,holds
length (ours),not in the paper,a length,eps=0.01,35,35,60,0.1,4,1,=,fails as printed
"""


POINTS = """\
family,method,lr,decay,seed,crossed,epochs,mean_train_accuracy
addition,adamw,0.5,2.0,0,9,15,0.5
addition,adamw,0.5,2.0,1,11,17,0.5
addition,adamw,1.0,2.0,0,,400,0.5
cifar,adamw,0.002,0.81,0,,100,0.24
cifar,adamw,0.002,0.81,1,,100,0.26
"""


def fresh(crossed: int | None, seed: int, epochs: int = 400, diverged: bool = False, share: float = 0.9) -> dict[str, Any]:
    return {"seed": seed, "crossed": crossed, "epochs": epochs, "diverged": diverged, "mean_train_accuracy": share}


def tuned(score: str, seeds: list[dict[str, Any]]) -> dict[str, Any]:
    plain = [fresh(159, 0), fresh(159, 1)] if score == "epochs" else [fresh(None, 0, share=0.4)]
    best = {"lr": 4.0, "decay": 3.33e-05, "budget": 1000, "passes": True}
    entry = {"title": "EGD", "best": best, "windows": [0], "points": [0, 0], "complete": True, "inside": True}
    spent = {"NVIDIA H200, 2026-11-15": 60.0, "AMD EPYC, 2026-11-16": 30.0}
    methods = {
        "sgd": {**entry, "fresh": plain, "spent": {"NVIDIA H200, 2026-11-15": 33.0}},
        "egd-after": {**entry, "fresh": seeds, "spent": spent},
    }
    return {"experiment": "e", "plain": "sgd", "score": score, "steps_per_epoch": 9, "methods": methods}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A repository with results, two pages and no numbers yet."""
    for folder in (
        "results/provisional",
        "results/superseded",
        "results/toy",
        "docs",
        "tests/contracts/numbers",
        "benchmarks",
    ):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "results/summary.csv").write_text(SUMMARY)
    (tmp_path / "results/provisional/summary.csv").write_text(SUMMARY.replace("addition-97,egd", "addition-97,adamw"))
    (tmp_path / "results/provisional/adamw-points.csv").write_text(POINTS)
    epochs = tuned("epochs", [fresh(13, 0), fresh(15, 1), fresh(14, 2)])
    (tmp_path / "results/superseded/tuned-addition.json").write_text(json.dumps(epochs))
    failing = tuned("epochs", [fresh(22, 0), fresh(None, 1, epochs=7, diverged=True), fresh(30, 2)])
    (tmp_path / "results/superseded/tuned-parity.json").write_text(json.dumps(failing))
    shares = tuned("train-accuracy", [fresh(None, seed, share=share) for seed, share in enumerate((0.895, 0.8961, 0.897))])
    (tmp_path / "results/superseded/tuned-cifar.json").write_text(json.dumps(shares))
    (tmp_path / TOY).write_text(CLAIMS)
    (tmp_path / "benchmarks/times.md").write_text(TABLES)
    (tmp_path / "benchmarks/table.csv").write_text("experiment,method,ms\na,egd-first,1.5\na,egd,2.25\nb,egd,3\n")
    return tmp_path


@pytest.mark.parametrize(
    ("query", "text"),
    [
        ("run addition-97 egd", "113 (108-122)"),  # and not the run that counts nowhere
        ("run addition-97 egd median", "113"),
        ("run addition-97 egd range", "108-122"),
        ("run addition-97 egd passed", "3 of 3"),
        ("run addition-97 egd steps", "1026 (981-1107)"),
        ("run addition-97 egd seeds=0-1", "115 (108-122)"),
        ("run addition-97 sgd", "15 (14 to > 400)"),
        ("run addition-97 sgd passed", "2 of 3"),
        ("run addition-97 slow", "> 400 (30 to > 500)"),
        ("run addition-97 slow median", "> 400"),
        ("run addition-97 same", "9"),
        ("run addition-97 same range", "9-9"),
        ("run mnist egd steps", "700 (600-45800)"),
        ("run mnist egd median steps", "700"),
        ("provisional addition-97 adamw", "113 (108-122)"),
        ("points addition 0.5 2 steps", "99 (90-108)"),
        ("points addition 0.5 2 passed", "2 of 2"),
        ("points addition 1 2", "> 400"),
        ("points cifar 0.002 0.81", "25.0 % (24.0-26.0)"),
        ("tuned addition egd-after", "14 (13-15)"),
        ("tuned addition egd-after median", "14"),
        ("tuned addition egd-after steps", "135 (126-144)"),
        ("tuned addition egd-after seeds=1-2 steps", "139.5 (135-144)"),
        ("tuned addition egd-after passed", "3 of 3"),
        ("tuned addition egd-after lr", "4"),
        ("tuned addition egd-after decay", "3.33e-05"),
        ("tuned parity egd-after", "30 (22 to > 1000)"),  # diverged: the budget, not the epochs
        ("tuned cifar egd-after", "89.6 % (89.5-89.7)"),
        ("tuned cifar egd-after median", "89.6"),
        ("tuned cifar egd-after range", "89.5-89.7"),
        ("cell benchmarks/times.md | 194 x 512 & products | ms", "1.605"),
        ("cell benchmarks/times.md | 194 x 512 & fast | ms | .0e", "8e-5"),
        ("cell benchmarks/times.md | 194 x 512 & fast | note | .0f", "12345"),
        ("cell benchmarks/times.md | 64 x & exact | ms | .2f", "2.40"),
        ("cell benchmarks/times.md | 194 x 512 & products | note", "a-b"),
        ("cell benchmarks/times.md | EGD | fresh", "5 (4-6)"),
        ("cell benchmarks/times.md | Addition & EGD | fresh", "7 (6-8)"),
        ("cell benchmarks/times.md | Second & EGD & 16 | lr", "16"),
        ("cell benchmarks/table.csv | a & egd | ms | .1f", "2.2"),
        ("cell benchmarks/table.csv | b & egd | ms", "3"),
        ("cell benchmarks/table.csv | method=egd & experiment=b | ms", "3"),
        ("cell benchmarks/table.csv | method=egd-first | ms | .0%", "150 %"),
        ("cell benchmarks/table.csv | method=egd-first | ms | .1p", "150.0"),
        ("run addition-97 egd trained", "114 (109-123)"),
        ("run addition-97 egd median trained", "114"),
        ("tuned addition egd-after median trained", "15"),
        ("run addition-97 egd ms", "2"),
        ("run addition-97 egd training", "0.246"),  # of 109 x 2, 123 x 2 and 114 x 3 ms
        ("run addition-97 egd seconds", "0.4"),
        ("toy m1 | s=1 | printed | .1f", "1.6"),
        ("toy m1 | s=1 | corrected | .2f", "1.53"),
        ("toy m1 | s=1 | mean | .3f", "1.525"),
        ("toy m1 | s=1 | measured | .4f", "1.5250 ± 0.0004"),
        ("toy m1 | s=1 | measured | .1p", "152.5 ± 0.0"),
        ("toy m1 | all | mean | .2f", "0.80 to 1.52"),
        ("toy m1 | all | printed", "1 of 2"),
        ("toy m1 | all | corrected", "2 of 2"),
        ("toy m1, order (acute), order (obtuse) | all | printed", "3 of 4"),
        ("toy order (acute), order (obtuse) | theta=0.75pi eps=0.01 | mean | .2f", "0.99"),
        ("toy order (acute), order (obtuse) | all | printed | .0f", "1"),
        ("claims all", "3"),  # not by key: the two orders are one claim
        ("claims all hold", "1"),
        ("claims paper", "2"),
        ("claims paper in part", "1"),
        ("claims paper fail", "0"),
        ("claims ours fail", "1"),
        ("spent addition H200 methods", "2"),
        ("spent addition H200 points", "4"),
        ("spent addition H200 minutes", "1.6"),  # 93 s
        ("spent addition EPYC methods", "1"),
        ("find benchmarks/times.md | \\| EGD \\| (\\S+)", "5"),
        ("find benchmarks/times.md | fast \\| (\\S+) | .0e", "8e-5"),
        ("ratio run addition-97 egd // tuned addition egd-after // .1f", "8.1"),
        ("product tuned addition egd-after median trained // run addition-97 egd ms // .0f", "30"),
        ("difference run addition-97 egd // tuned addition egd-after // .0f", "99"),
        ("more run addition-97 egd // cell benchmarks/times.md | First & exact | ms // .0%", "4608 %"),
        ("each egd, same :: run addition-97 * median :: .1f", "61.0 (9.0-113.0)"),
        ("each a, b :: cell benchmarks/table.csv | experiment=* & method=egd | ms :: .2f :: smallest", "2.25"),
        ("each a, b :: cell benchmarks/table.csv | experiment=* & method=egd | ms :: .2f :: largest", "3.00"),
        ("each a, b :: cell benchmarks/table.csv | experiment=* & method=egd | ms :: .2f :: sum", "5.25"),
        ("each egd, same :: ratio run addition-97 * trained // run addition-97 egd trained // .6f :: .2f :: mean", "0.54"),
    ],
)
def test_queries_have_answers(query: str, text: str, root: Path) -> None:
    assert answer(query, root) == text


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ("runs addition-97 egd", "a query begins with run"),
        ("run addition-97", "EXPERIMENT METHOD must be named"),
        ("run addition-97 egd-outside", "no 'egd-outside' of 'addition-97'; it has egd"),
        ("run addition-79 egd", "no 'egd' of 'addition-79'; it has addition-97"),
        ("run addition-97 egd mean", "got 'mean'"),
        ("run addition-97 egd median range", "only one of"),
        ("run addition-97 egd seeds=2-7", "no seed 3"),
        ("provisional addition-97 egd", "has no 'egd'"),
        ("points addition 0.5 3", "no point 0.5, 3"),
        ("tuned subtraction egd", "no file"),
        ("tuned addition egd", "it has sgd, egd-after"),
        ("tuned cifar egd-after passed", "judged by accuracy"),
        ("cell benchmarks/none.md | EGD | lr", "no file"),
        ("cell benchmarks/times.md | EGD", "PATH | TEXT & TEXT | COLUMN"),
        ("cell benchmarks/times.md | EGD | loss", "no column 'loss'"),
        ("cell benchmarks/times.md | Muon | lr", "no row with 'Muon'"),
        ("cell benchmarks/times.md | First & EGD | lr", "no row"),
        ("cell benchmarks/times.md | EGD | lr | .2q", "no format"),
        ("cell benchmarks/times.md | EGD | method | .2f", "no number"),
        ("cell benchmarks/table.csv | method=eg | ms", "no row"),
        ("run addition-97 slow training", "did not pass"),
        ("spent addition T4 methods", "nothing of 'addition'"),
        ("spent addition H200 hours", "got 'hours'"),
        ("toy m1 | s=1", "with a word of printed"),
        ("toy m1 | s=1 | slack | .1f", "with a word of printed"),
        ("toy m2 | s=1 | mean | .1f", "no key 'm2'; it has m1"),
        ("toy m1 | s=2 | mean | .1f", "no point 's=2' of 'm1'"),
        ("toy order (acute) | eps=0.01 | mean | .1f", "no point"),
        ("toy m1 | s=1 | mean", "needs a FORMAT"),
        ("claims theirs", "got 'theirs'"),
        ("claims paper holds", "got 'paper holds'"),
        ("find benchmarks/times.md | Muon (\\d+)", "nothing that matches"),
        ("find benchmarks/times.md | EGD", "with a group"),
        ("more run addition-97 egd // .0%", "a more is QUERY // QUERY // FORMAT"),
        ("each egd, same :: run addition-97 egd :: .1f", "with a *"),
        ("each egd, same :: run addition-97 * :: .1f :: median", "got 'median'"),
    ],
)
def test_queries_without_an_answer_say_why(query: str, message: str, root: Path) -> None:
    with pytest.raises(QueryError) as raised:
        answer(query, root)
    assert message in str(raised.value)


def test_a_line_is_rendered_with_all_its_queries(root: Path) -> None:
    line = "| EGD | {run addition-97 egd} | {tuned addition egd-after median} | 44.8 |"
    assert render(line, root) == "| EGD | 113 (108-122) | 14 | 44.8 |"


def written(root: Path, page: str, toml: str) -> Numbers:
    (root / "docs" / "page.md").write_text(page, encoding="utf-8")
    file = root / "tests" / "contracts" / "numbers" / "page.toml"
    file.write_text('page = "docs/page.md"\n' + toml, encoding="utf-8")
    return load(file, root)


PAGE = """\
# Epochs

EGD passes after **113**
(108–122) epochs, where SGD needs 12 000.

| | epochs |
|---|---|
| EGD |   113 (108-122)  |
| tuned | 14 (13-15) |
"""
LINES = """
lines = [
  '| EGD | {run addition-97 egd} |',
  'passes after {run addition-97 egd} epochs, where SGD needs 12000',
  '| tuned | {tuned addition egd-after} |',
]
"""


def test_a_page_that_is_right_passes(root: Path) -> None:
    numbers = written(root, PAGE, LINES)
    assert wrong(numbers, root) == []
    assert uncovered(numbers.page, [numbers], root) == []


@pytest.mark.parametrize("change", [("113 (108-122)", "112 (108-122)"), ("14 (13-15)", "14 (13-16)"), ("12 000", "13 000")])
def test_a_wrong_number_fails(root: Path, change: tuple[str, str]) -> None:
    told = wrong(written(root, PAGE.replace(*change), LINES), root)
    assert len(told) == 1
    assert "query:" in told[0]


def test_a_failure_shows_query_rendered_text_and_closest_line(root: Path) -> None:
    (told,) = wrong(written(root, PAGE.replace("113 (108-122)", "112 (108-122)"), LINES), root)
    assert "| EGD | {run addition-97 egd} |" in told
    assert "rendered: | EGD | 113 (108-122) |" in told
    assert "closest:  line 8: | EGD |   112 (108-122)  |" in told


def test_a_query_without_an_answer_fails_the_page(root: Path) -> None:
    (told,) = wrong(written(root, PAGE, "lines = ['| EGD | {run addition-97 egd-outside} |']"), root)
    assert "no answer: summary.csv has no 'egd-outside'" in told


def test_a_longer_number_is_another(root: Path) -> None:
    for text in ("within 1113", "within 113.5", "within 1130", "within 0.113"):
        numbers = written(root, f"{text} epochs", "lines = ['in {run addition-97 egd median}']")
        assert len(wrong(numbers, root)) == 1
    for text in ("in 113.", "in 113, or", "in 113"):
        assert wrong(written(root, f"it {text}", "lines = ['in {run addition-97 egd median}']"), root) == []


@pytest.mark.parametrize(
    "text",
    [
        "EGD needs 12 (11-13) epochs",
        "EGD needs **12** (11–13) epochs",
        "SGD needs 15 (14 to > 400)",
        "SGD needs > 400 (30 to > 500)",
        "of which 7 of 8 pass",
        "a step takes 0.32 ms",
        "it takes 13 s.",
        "it took 24.8 minutes",
        "it is **60** times faster",
        "1.5 to 2.0 times the accuracy",
        "a gain of 46.5×",
        "2.5x faster",
        "2.5 x faster",
        "it is 53.8 points better",
        "89.6 % of the labels",
        "87.5% of the labels",
        "| EGD | 89.6 % |",
        "[89.6 %](x.md)",
        "epochs to 90 %",  # no experiment's threshold
        "accuracy rises to 95 %",
        "it has 95 %",
        "an exponent of 1.001 ± 0.0008",
        "0.2 and 0.5, each ± 0.002 or less",
    ],
)
def test_a_number_that_is_not_covered_fails(root: Path, text: str) -> None:
    numbers = written(root, f"{PAGE}\n{text}\n", LINES)
    assert wrong(numbers, root) == []
    (told,) = uncovered(numbers.page, [numbers], root)
    assert told.startswith("  line 11: ")


@pytest.mark.parametrize(
    "text",
    [
        "an MLP 784-200-200-10, 5 x 5 windows, seeds 0-7, lr 0.3",
        "torch 2.11 (2026-11-15) on an H200 (2026-11-15)",
        "```\nmake grok   # 90 s\n```",
        "`7 of 8` and <!-- 12 s --> [here](a_12%20s.md)",
        "one of 8, and two of the 8",
        "3 such steps, 4 samples, 2 smooth",
        "Epochs to 95 %, a seed that passes 95 %, steps to 85 %, still below 95 %",
    ],
)
def test_what_is_not_measured_needs_no_source(root: Path, text: str) -> None:
    numbers = written(root, f"{PAGE}\n{text}\n", LINES)
    assert uncovered(numbers.page, [numbers], root) == []


def test_half_of_a_number_is_not_covered(root: Path) -> None:
    numbers = written(root, "EGD: 113 (108-122).", "lines = ['EGD: {run addition-97 egd median}']")
    assert wrong(numbers, root) == []
    assert len(uncovered(numbers.page, [numbers], root)) == 1


def test_an_exempt_text_covers_itself_alone(root: Path) -> None:
    exempt = '\nexempt = [{ text = "5 % less", why = "the paper" }]'
    numbers = written(root, f"{PAGE}\nIt has 5 % less.\n", LINES + exempt)
    assert wrong(numbers, root) == []
    assert uncovered(numbers.page, [numbers], root) == []
    numbers = written(root, f"{PAGE}\nIt has 5 % less, then 6 % and 95 % less.\n", LINES + exempt)
    assert [told.split("'")[1] for told in uncovered(numbers.page, [numbers], root)] == ["6 %", "95 %"]


def test_an_exempt_text_that_has_gone_fails(root: Path) -> None:
    (told,) = wrong(written(root, PAGE, LINES + '\nexempt = [{ text = "5 % less", why = "the paper" }]'), root)
    assert "is not on the page" in told


def test_only_the_page_s_own_file_covers_it(root: Path) -> None:
    numbers = written(root, PAGE, LINES)
    (root / "docs" / "other.md").write_text(PAGE)
    assert len(uncovered(root / "docs" / "other.md", [numbers], root)) == 3


@pytest.mark.parametrize(
    ("toml", "message"),
    [
        ("line = []", "got 'line'"),
        ("lines = ['113 (108-122) epochs']", "a line without a query"),
        ("lines = ['{run addition-97 egd median}']", "a number alone"),
        ("exempt = [{ text = '5 %' }]", "text and why"),
        ("exempt = [{ text = '5 %', why = ' ' }]", "text and why"),
    ],
)
def test_a_file_of_numbers_must_say_what_it_may(root: Path, toml: str, message: str) -> None:
    with pytest.raises(QueryError) as raised:
        written(root, PAGE, toml)
    assert message in str(raised.value)


def test_a_file_of_numbers_needs_its_page(root: Path) -> None:
    (root / "tests/contracts/numbers/gone.toml").write_text('page = "docs/gone.md"')
    with pytest.raises(QueryError):
        load(root / "tests/contracts/numbers/gone.toml", root)


def test_normal_text_knows_where_it_was() -> None:
    text = "a **12 000**  (11–13)\n x"
    normal = normalise(text)
    assert normal.text == "a 12000 (11-13) x"
    assert [text[place].replace("–", "-").replace("\n", " ") for place in normal.origin] == list(normal.text)


def test_the_closest_line_is_that_with_the_same_words() -> None:
    assert closest("| EGD | 9 | 8 |", "# EGD\n\n| SGD | 9 | 8 | 7 |\n| EGD | 9 | 7 |\n") == "line 4: | EGD | 9 | 7 |"


def test_the_best_points_of_adamw_are_those_that_the_page_names() -> None:
    points: dict[tuple[str, float, float], list[dict[str, str]]] = {}
    with (ROOT / "results" / "provisional" / "adamw-points.csv").open(newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            points.setdefault((row["family"], float(row["lr"]), float(row["decay"])), []).append(row)
    assert Counter(family for family, _, _ in points) == {"mnist": 12, "cifar": 16}

    def epochs(point: tuple[str, float, float]) -> float:
        return statistics.median(float(row["crossed"] or "inf") for row in points[point])

    def share(point: tuple[str, float, float]) -> float:
        return statistics.median(float(row["mean_train_accuracy"]) for row in points[point])

    assert min((point for point in points if point[0] == "mnist"), key=epochs) == ("mnist", 0.064, 2.0)
    assert max((point for point in points if point[0] == "cifar"), key=share) == ("cifar", 0.0005, 0.27)
