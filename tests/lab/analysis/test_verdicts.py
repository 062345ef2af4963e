"""One verdict of every kind."""

from __future__ import annotations

import io
from collections import Counter
from pathlib import Path

import pytest
from report_records import write_run
from rich.console import Console

from egalitarian.lab.analysis.counts import Count
from egalitarian.lab.analysis.gather import Summary, gather
from egalitarian.lab.analysis.judging import anchor, excused, judge_reached, place
from egalitarian.lab.analysis.statistics import Estimate, estimate
from egalitarian.lab.analysis.verdicts import Verdict, check, in_words, tally
from egalitarian.lab.config import catalog
from egalitarian.lab.console.reports import say_verdicts
from egalitarian.lab.runs.store import Store

NINE = [f"{kind}-{p}" for kind in ("addition", "multiplication") for p in (79, 97, 127)] + [
    "parity-2",
    "parity-3",
    "parity-4",
]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    store = Store(tmp_path_factory.mktemp("runs"))
    for seed, crossed in enumerate([110, 120, 130]):
        write_run(store, "addition-97", "egd", seed, crossed)
    for seed, crossed in enumerate([150, 160, 170]):
        write_run(store, "addition-97", "egd-rsvd-128", seed, crossed)
    for seed, crossed in enumerate([100, 150, 200]):
        write_run(store, "addition-97", "egd-rsvd-64", seed, crossed)
    write_run(store, "addition-97", "row-norm", 0, 300)
    write_run(store, "addition-97", "sgd", 0, epochs=20)
    for seed in range(3):
        write_run(store, "parity-4", "row-norm", seed)
        write_run(store, "parity-4", "egd-rsvd-40", seed, 60 + seed)
        write_run(store, "parity-4", "egd", seed)
        write_run(store, "parity-2", "egd", seed, (82, 78, 87)[seed])
    return store


@pytest.fixture(scope="module")
def verdicts(store: Store) -> list[Verdict]:
    return check(store).verdicts


def cell(verdicts: list[Verdict], experiment: str, method: str, measure: str = "epochs") -> Verdict:
    return next(one for one in verdicts if (one.experiment, one.method, one.measure) == (experiment, method, measure))


@pytest.mark.parametrize(
    ("experiment", "method", "kind", "words"),
    [
        ("addition-97", "egd", "inside", "inside the spread"),
        ("addition-97", "egd-rsvd-128", "outside", "outside: 7.3 % below the spread [150, 170]"),
        ("addition-97", "egd-rsvd-64", "outside", "outside: 18.5 % above the spread [100, 200]"),
        ("addition-97", "row-norm", "too few seeds", "too few seeds: 1, at least 3 are needed"),
        ("addition-97", "sgd", "unfinished", "unfinished: 1 of 1 seeds"),
        ("addition-79", "egd", "not run", "not run"),
        ("parity-4", "row-norm", "inside", "inside the spread"),
        ("parity-4", "egd-rsvd-40", "known", "known: see docs/errata.md#one-run-per-cell (outside: 3 of 3 seeds pass)"),
        ("parity-4", "egd", "outside", "outside: none of 3 seeds passes within 1500 epochs"),
        ("parity-2", "egd", "outside", "outside: 25.3 % above the spread [78, 87]"),
    ],
)
def test_a_verdict_of_each_kind(verdicts: list[Verdict], experiment: str, method: str, kind: str, words: str) -> None:
    found = cell(verdicts, experiment, method)
    assert (found.kind, found.verdict) == (kind, words)


def test_a_row_says_paper_median_spread_n_and_passed(verdicts: list[Verdict]) -> None:
    found = cell(verdicts, "addition-97", "egd")
    assert (found.table, found.paper, found.ours, found.spread) == ("Table 2", "116", "120", "110–130")
    assert (found.n, found.passed, found.aside) == (3, 3, False)


def test_known_not_to_reproduce_points_to_the_errata(store: Store) -> None:
    runs = gather(store).of("addition-97", "egd-rsvd-128")
    erratum = "Rank 128, and why: it differs"
    kind, words = excused(judge_reached(139, estimate(runs)), erratum)
    assert kind == "known"
    assert words.startswith("known: see docs/errata.md#rank-128-and-why-it-differs (outside: 7.3 % below")
    assert excused(judge_reached(155, estimate(runs)), erratum) == ("inside", "inside the spread")


def seeds(*crossings: int | None, bound: int = 12_000) -> Estimate:
    said = ["not passed" if crossed is None else "passed" for crossed in crossings]
    runs = [
        Summary("parity-4", "sgd", seed, "id", state, crossed, bound, bound, None, None, None, None)  # type: ignore[arg-type]
        for seed, (crossed, state) in enumerate(zip(crossings, said, strict=True))
    ]
    return estimate(runs)


@pytest.mark.parametrize(
    ("crossings", "kind", "words"),
    [
        ((None, None, None), "inside", "inside the spread"),
        ((10, None, None), "inside", "inside the spread, though 1 of 3 seeds pass"),
        ((10, 20, None, None), "inside", "inside the spread, though 2 of 4 seeds pass"),
        ((10, 20, None), "outside", "outside: 2 of 3 seeds pass"),
        ((46, 52, 51, 175, 214, 2715, None, None), "outside", "outside: 6 of 8 seeds pass"),
    ],
)
def test_never_is_inside_only_where_half_of_the_seeds_or_more_do_not_pass(
    crossings: tuple[int | None, ...], kind: str, words: str
) -> None:
    assert judge_reached("never", seeds(*crossings)) == (kind, words)


@pytest.mark.parametrize(
    ("paper", "kind", "words"),
    [
        (293, "inside", "inside the spread"),
        (385, "inside", "inside the spread"),
        (200, "outside", "outside: 32 % below the spread [293, > 12000]"),
        (
            5273,
            "undecided",
            "undecided: above every seed that passed (at most 385), and 1 of 4 did not pass within 12000 epochs",
        ),
    ],
)
def test_above_all_seeds_that_passed_is_undecided_while_others_did_not(paper: int, kind: str, words: str) -> None:
    found = seeds(293, 352, 385, None)
    judged = judge_reached(paper, found)
    assert judged == (kind, words)
    assert excused(judged, "x")[0] == kind.replace("outside", "known")


def test_where_no_seed_passes_a_number_is_outside_up_to_the_budget_and_undecided_beyond() -> None:
    words = "none of 3 seeds passes within 400 epochs"
    for paper, kind in ((116, "outside"), (400, "outside"), (5392, "undecided")):
        assert judge_reached(paper, seeds(None, None, None, bound=400)) == (kind, f"{kind}: {words}")


def test_one_run_per_cell_excuses_only_a_never_beside_seeds_that_pass() -> None:
    for name in catalog.names():
        for claim in catalog.load(name).claims.values():
            assert claim.erratum != "One run per cell" or claim.epochs == "never"


def test_every_erratum_is_a_heading_of_the_errata() -> None:
    page = (Path(__file__).parents[3] / "docs" / "errata.md").read_text()
    for name in catalog.names():
        for claim in catalog.load(name).claims.values():
            assert not claim.erratum or f"### {claim.erratum}\n" in page


@pytest.mark.parametrize(
    ("paper", "low", "high", "words"),
    [
        (100, Count(100), Count(200), "inside the spread"),
        (200, Count(100), Count(200), "inside the spread"),
        (50, Count(100), Count(200), "outside: 50 % below the spread [100, 200]"),
        (500, Count(100), Count(200), "outside: 150 % above the spread [100, 200]"),
        (5715, Count(5737), Count(6116), "outside: 0.38 % below the spread [5737, 6116]"),
    ],
)
def test_the_place_of_a_value(paper: float, low: Count, high: Count, words: str) -> None:
    assert place(paper, low, high) == (words.partition(":")[0].partition(" ")[0], words)


def test_wall_clock_cells_are_of_other_hardware(verdicts: list[Verdict]) -> None:
    found = cell(verdicts, "addition-97", "egd", "ms per epoch")
    assert (found.kind, found.paper) == ("other hardware", "94.4")
    assert "Tesla T4" in found.verdict
    assert "NVIDIA H200" in found.verdict
    assert cell(verdicts, "addition-79", "egd", "seconds").kind == "other hardware"


def test_every_claim_has_its_cell(verdicts: list[Verdict]) -> None:
    cells = {"epochs": 6 * 5 + 3 * 7, "gain in epochs": 3, "steps": 6 + 4, "final accuracy": 6 + 4, "mean accuracy": 4 * 6}
    assert Counter(one.measure for one in verdicts if one.compared) == cells
    assert not any(one.aside for one in verdicts)


def test_average_gains_are_judged_only_when_every_task_was_run(tmp_path: Path) -> None:
    store = Store(tmp_path)
    for name in NINE[:-1]:
        for seed in range(3):
            write_run(store, name, "sgd", seed, 20 * (2 + seed))
            write_run(store, name, "egd", seed, 2 + seed)
    before = cell(check(store).verdicts, "average", "egd", "gain in epochs")
    assert (before.kind, before.verdict) == ("incomplete", "incomplete: not run on parity-4")
    for seed in range(3):
        write_run(store, NINE[-1], "sgd", seed, 60)
        write_run(store, NINE[-1], "egd", seed, 3)
    judged = check(store).verdicts
    after = cell(judged, "average", "egd", "gain in epochs")
    assert (after.kind, after.ours, after.n, after.passed) == ("outside", "20.0×", 3, 9)
    assert after.verdict.startswith("outside:")
    assert "above the spread" in after.verdict
    assert cell(judged, "average", "row-norm", "gain in epochs").kind == "not run"


def test_the_text_read_literally_is_judged_apart_and_only_where_it_was_run(tmp_path: Path) -> None:
    store = Store(tmp_path)
    assert not any(one.experiment == "parity-3-hinge" for one in check(store).verdicts)
    assert any(one.experiment == "parity-3-hinge" for one in check(store, ["parity-3-hinge"]).verdicts)
    for seed in range(3):
        write_run(store, "parity-3-hinge", "egd", seed)
    everything = check(store).verdicts
    found = cell(everything, "parity-3-hinge", "egd")
    assert found.aside
    assert found.table == "Table 4: Sparse parity, 3 secret of 100 bits, as the paper's text has it"
    assert "outside" not in tally(everything)
    assert tally(everything, aside=True) == {"not run": 6, "known": 1}
    assert "text read literally" in in_words(everything)


def test_an_experiment_without_claims_is_said_to_have_none_and_where_its_runs_are_shown(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(
        'extends = "_parity"\ntitle = "Two of twenty"\n[task]\nbits = 20\nsecret_bits = 2\n[model]\nwidth = 8\n'
    )
    checked = check(Store(tmp_path / "runs"), [str(path)])
    assert checked.verdicts == []
    (remark,) = checked.remarks
    assert remark.startswith("mine (Two of twenty) has no claims of the paper")
    assert "`egalitarian report`" in remark
    out = io.StringIO()
    say_verdicts(Console(file=out, width=200), checked)
    assert out.getvalue() == f"{remark}.\n", "no empty table"


def test_the_verdicts_fit_a_terminal_of_80_columns(tmp_path: Path) -> None:
    store = Store(tmp_path)
    for method in ("sgd", "egd", "row-norm"):
        write_run(store, "addition-97", method, 0)
    out = io.StringIO()
    say_verdicts(Console(file=out, width=80), check(store))
    assert "egd-rsvd-best-rank" in out.getvalue()
    assert max(map(len, out.getvalue().splitlines())) <= 80


def test_a_run_that_is_not_begun_is_no_seed_and_is_remarked_on(tmp_path: Path) -> None:
    store = Store(tmp_path)
    stored = write_run(store, "addition-97", "egd", 0, epochs=0)
    checked = check(store, ["addition-97"])
    found = cell(checked.verdicts, "addition-97", "egd")
    assert (found.kind, found.n, found.ours) == ("not run", 0, "")
    assert checked.remarks == (
        f"Not begun, without a trained epoch, and counted nowhere: addition-97/egd/{stored.folder.name}",
    )


def test_what_cannot_be_read_is_told_with_the_verdicts(tmp_path: Path) -> None:
    store = Store(tmp_path)
    stored = write_run(store, "addition-97", "egd", 0, 20)
    (stored.folder / "records.jsonl").write_bytes(b"")
    found = check(store)
    assert "only 0 bytes" in found.warnings[0]
    assert next(one for one in found.verdicts if one.method == "egd").kind == "not run"


def test_headings_become_anchors() -> None:
    assert anchor("Sparse parity, k = 4: row norm") == "sparse-parity-k--4-row-norm"


def test_in_words_counts_what_can_be_compared(verdicts: list[Verdict]) -> None:
    words = in_words(verdicts)
    assert "2 inside" in words
    assert words.endswith("wall-clock cells are of other hardware")
    assert in_words([]) == "none asked for"
