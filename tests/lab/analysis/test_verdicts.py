"""Verdicts on the cells of the paper: one of every kind."""

from __future__ import annotations

import io
from collections import Counter
from pathlib import Path

import pytest
from report_records import write_run
from rich.console import Console

from egalitarian.lab.analysis import Verdict, check, estimate, gather, in_words, tally
from egalitarian.lab.analysis.judging import excuse, judge_reached
from egalitarian.lab.config import catalog
from egalitarian.lab.console.reports import print_verdicts
from egalitarian.lab.runs import Store

NINE = [f"{kind}-{p}" for kind in ("addition", "multiplication") for p in (79, 97, 127)] + [
    "parity-2",
    "parity-3",
    "parity-4",
]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    store = Store(tmp_path_factory.mktemp("runs"))
    for seed, share in enumerate([0, 0.1, 0.2, 0.45, 0.55, 0.8, 0.9, 1]):
        write_run(store, "addition-97", "egd", seed, 110 + round(20 * share))
        write_run(store, "addition-97", "egd-rsvd-128", seed, 150 + round(20 * share))
        write_run(store, "addition-97", "egd-rsvd-64", seed, 100 + round(100 * share))
        write_run(store, "parity-4", "row-norm", seed, epochs=20, diverged=True)
        write_run(store, "parity-4", "egd-rsvd-40", seed, 60 + seed)
        write_run(store, "parity-4", "egd", seed, epochs=20, diverged=True)
        write_run(store, "parity-2", "egd", seed, 78 + round(9 * share))
    for seed in range(8, 32):
        write_run(store, "parity-2", "egd", seed, 109)
    write_run(store, "addition-97", "row-norm", 0, 300)
    write_run(store, "addition-97", "sgd", 0, epochs=20)
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
        ("addition-97", "row-norm", "too few seeds", "too few seeds: 1 of the first 8"),
        ("addition-97", "sgd", "unfinished", "unfinished: 1 of 1 seeds"),
        ("addition-79", "egd", "not run", "not run"),
        ("parity-4", "row-norm", "inside", "inside the spread"),
        ("parity-4", "egd-rsvd-40", "known", "known: see docs/errata.md#one-run-per-cell (outside: 8 of 8 seeds pass)"),
        ("parity-4", "egd", "outside", "outside: none of 8 seeds passes within 1500 epochs"),
        ("parity-2", "egd", "outside", "outside: 25.3 % above the spread [78, 87]"),
    ],
)
def test_a_verdict_of_each_kind(verdicts: list[Verdict], experiment: str, method: str, kind: str, words: str) -> None:
    found = cell(verdicts, experiment, method)
    assert (found.kind, found.verdict) == (kind, words)


def test_a_row_has_paper_median_spread_n_and_passed(verdicts: list[Verdict]) -> None:
    found = cell(verdicts, "addition-97", "egd")
    assert (found.table, found.paper, found.ours, found.spread) == ("Table 2", "116", "120", "110–130")
    assert (found.n, found.passed, found.distance, found.other_settings) == (8, 8, "-0.3", False)


def test_seeds_beyond_the_first_do_not_count_and_are_remarked_on(store: Store) -> None:
    """24 more seeds, added after eight that miss the paper's number, cannot bring it inside."""
    checked = check(store, ["parity-2"])
    found = cell(checked.verdicts, "parity-2", "egd")
    assert (found.kind, found.n, found.spread) == ("outside", 8, "78–87")
    assert checked.remarks == ("Seeds from 8 on, which verdicts do not read: parity-2 egd (24)",)
    assert check(store, ["addition-97"]).remarks == ()


def test_an_open_cell_has_no_distance(verdicts: list[Verdict]) -> None:
    assert {one.kind for one in verdicts if one.distance} == {"inside", "outside"}
    assert all(one.finding for one in verdicts if one.distance)


def test_a_known_cell_points_to_the_errata(store: Store) -> None:
    runs = gather(store).of("addition-97", "egd-rsvd-128")
    erratum = "Rank 128, and why: it differs"
    kind, words = excuse(judge_reached(139, estimate(runs), 8), erratum)
    assert kind == "known"
    assert words.startswith("known: see docs/errata.md#rank-128-and-why-it-differs (outside: 7.3 % below")
    assert excuse(judge_reached(155, estimate(runs), 8), erratum) == ("inside", "inside the spread")


def test_one_run_per_cell_excuses_only_a_never_where_seeds_pass() -> None:
    for name in catalog.names():
        for claim in catalog.load(name).claims.values():
            assert claim.erratum != "One run per cell" or claim.epochs == "never"


def test_every_erratum_is_a_heading_of_the_errata() -> None:
    page = (Path(__file__).parents[3] / "docs" / "errata.md").read_text()
    for name in catalog.names():
        for claim in catalog.load(name).claims.values():
            assert not claim.erratum or f"### {claim.erratum}\n" in page


def test_wall_clock_cells_are_of_other_hardware(verdicts: list[Verdict]) -> None:
    found = cell(verdicts, "addition-97", "egd", "ms per epoch")
    assert (found.kind, found.paper) == ("other hardware", "94.4")
    assert "Tesla T4" in found.verdict
    assert "NVIDIA H200" in found.verdict
    assert cell(verdicts, "addition-79", "egd", "seconds").kind == "other hardware"


def test_every_claim_has_its_cell(verdicts: list[Verdict]) -> None:
    cells = {"epochs": 6 * 5 + 3 * 7, "gain in epochs": 3, "steps": 6 + 4, "final accuracy": 6 + 4, "mean accuracy": 4 * 6}
    assert Counter(one.measure for one in verdicts if one.compared) == cells
    assert not any(one.other_settings for one in verdicts)


def test_average_gains_are_judged_only_when_every_task_was_run(tmp_path: Path) -> None:
    store = Store(tmp_path)
    for name in NINE[:-1]:
        for seed in range(8):
            write_run(store, name, "sgd", seed, 20 * (2 + seed % 3))
            write_run(store, name, "egd", seed, 2 + seed % 3)
    before = cell(check(store).verdicts, "average", "egd", "gain in epochs")
    assert (before.kind, before.verdict) == ("incomplete", "incomplete: not run on parity-4")
    for seed in range(8):
        write_run(store, NINE[-1], "sgd", seed, 60)
        write_run(store, NINE[-1], "egd", seed, 3)
    judged = check(store).verdicts
    after = cell(judged, "average", "egd", "gain in epochs")
    assert (after.kind, after.ours, after.n, after.passed) == ("outside", "20.0×", 8, 9)
    assert after.verdict.startswith("outside:")
    assert "above the spread" in after.verdict
    assert cell(judged, "average", "row-norm", "gain in epochs").kind == "not run"


def test_the_text_read_literally_is_judged_apart_and_only_where_it_was_run(tmp_path: Path) -> None:
    store = Store(tmp_path)
    assert not any(one.experiment == "parity-3-hinge" for one in check(store).verdicts)
    assert any(one.experiment == "parity-3-hinge" for one in check(store, ["parity-3-hinge"]).verdicts)
    for seed in range(8):
        write_run(store, "parity-3-hinge", "egd", seed, epochs=20, diverged=True)
    everything = check(store).verdicts
    found = cell(everything, "parity-3-hinge", "egd")
    assert found.other_settings
    assert found.table == "Table 4: Sparse parity, 3 secret of 100 bits, as the paper's text has it"
    assert "outside" not in tally(everything)
    assert tally(everything, other_settings=True) == {"not run": 6, "known": 1}
    assert "text read literally" in in_words(everything)


def test_an_experiment_without_claims_is_a_remark_with_the_command_for_its_runs(tmp_path: Path) -> None:
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
    print_verdicts(Console(file=out, width=200), checked)
    assert out.getvalue() == f"{remark}.\n", "no empty table"


def test_the_verdicts_fit_a_terminal_of_80_columns(tmp_path: Path) -> None:
    store = Store(tmp_path)
    for method in ("sgd", "egd", "row-norm"):
        write_run(store, "addition-97", method, 0)
    out = io.StringIO()
    print_verdicts(Console(file=out, width=80), check(store))
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


def test_what_cannot_be_read_is_a_warning(tmp_path: Path) -> None:
    store = Store(tmp_path)
    stored = write_run(store, "addition-97", "egd", 0, 20)
    (stored.folder / "records.jsonl").write_bytes(b"")
    found = check(store)
    assert "only 0 bytes" in found.warnings[0]
    assert next(one for one in found.verdicts if one.method == "egd").kind == "not run"


def test_in_words_counts_what_can_be_compared(verdicts: list[Verdict]) -> None:
    words = in_words(verdicts)
    assert "2 inside" in words
    assert words.endswith("wall-clock cells are of other hardware")
    assert in_words([]) == "none asked for"


def test_steps_final_accuracies_and_means_are_judged(tmp_path: Path) -> None:
    store = Store(tmp_path)
    for seed in range(8):
        write_run(store, "mnist", "egd", seed, 6 + seed % 3, epochs=300 if seed < 7 else None)
        write_run(store, "mnist", "egd-rsvd-16", seed, 6, epochs=300)
        learnt = 0.2 + 0.1 * (seed % 3)
        write_run(store, "cifar-shuffle-3", "adam", seed, learnt=lambda epoch, mean=learnt: mean + 0.1 * (-1) ** epoch)
        write_run(store, "cifar-shuffle-3", "adam-egd", seed, learnt=lambda epoch: 0.6)
        write_run(
            store, "cifar-shuffle-3", "radam", seed, learnt=lambda epoch: 0.229, epochs=40 if seed == 1 else None,
            diverged=seed == 1,
        )  # fmt: skip
    verdicts = [one for one in check(store).verdicts if one.experiment in ("mnist", "cifar-shuffle-3")]

    def of(method: str, measure: str) -> Verdict:
        return next(one for one in verdicts if (one.method, one.measure) == (method, measure))

    steps = of("egd", "steps")
    assert (steps.kind, steps.ours, steps.spread, steps.distance) == ("inside", "800", "700–900", "-0.8")
    assert of("egd", "ms per step").kind == "other hardware"
    assert of("egd", "final accuracy").verdict == "too few seeds: 7 of the first 8 of full length"
    assert of("egd-rsvd-16", "final accuracy").kind == "outside"
    assert of("egd-rsvd-4", "final accuracy").kind == "not run"
    adam = of("adam", "mean accuracy")
    assert (adam.kind, adam.paper, adam.distance) == ("inside", "24.7", "-0.4")
    assert of("adam-egd", "mean accuracy").verdict == "outside: 4.0 points below the spread [60.0, 60.0]"
    assert of("radam", "mean accuracy").verdict == "inside the spread; 1 of 8 seeds diverged"
