"""Runs of two tiers and of version 1: which counts, how it is labelled, and that a row of several says so."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from report_records import as_earlier, write_run

from egalitarian.lab.analysis import Gathered, check, gather
from egalitarian.lab.report import write_report
from egalitarian.lab.runs import Store


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "runs")


def counted(found: Gathered, method: str = "egd") -> list[tuple[int, int | None, str]]:
    """Seed, the epoch that passed, and the tier of each run that counts."""
    return [(run.seed, run.outcome.crossed, run.polar) for run in found.of("addition-97", method)]


def test_runs_of_either_tier_count(store: Store) -> None:
    write_run(store, "addition-97", "egd", 0, 30, polar="exact")
    write_run(store, "addition-97", "egd", 1, 40, polar="fast")
    write_run(store, "addition-97", "sgd", 0, 50)
    found = gather(store)
    assert counted(found) == [(0, 30, "exact"), (1, 40, "fast")]
    assert counted(found, "sgd") == [(0, 50, "")]
    assert (found.variants, found.warnings, found.remarks) == ((), (), ())


def test_a_tier_that_is_asked_for_counts_where_auto_may_mean_it(store: Store) -> None:
    for tier, crossed in (("exact", 30), ("coarse", 40)):
        change = [f"methods.egd.transform.0.precision={tier}"]
        write_run(store, "addition-97", "egd", 0, crossed, changes=change)
    found = gather(store)
    assert counted(found) == [(0, 30, "exact")]
    assert [run.differs for run in found.variants] == ["transform.0.precision = coarse (catalogue: auto)"]


def test_of_two_tiers_that_counts_which_more_seeds_have(store: Store) -> None:
    for seed in range(3):
        write_run(store, "addition-97", "egd", seed, 30 + seed, polar="fast")
    for seed in range(2):
        write_run(store, "addition-97", "egd", seed, 50 + seed, polar="exact")
    found = gather(store)
    assert counted(found) == [(0, 30, "fast"), (1, 31, "fast"), (2, 32, "fast")]
    assert [(run.seed, run.differs) for run in found.variants] == [
        (seed, "polar factor exact: of this seed the run with fast counts") for seed in range(2)
    ]
    write_run(store, "addition-97", "egd", 2, 52, polar="exact")
    assert counted(gather(store)) == [(0, 50, "exact"), (1, 51, "exact"), (2, 52, "exact")], "as many: exact"


def test_unfinished_seeds_do_not_outvote_finished_ones(store: Store) -> None:
    for seed in range(3):
        write_run(store, "addition-97", "egd", seed, epochs=3, polar="exact")
    for seed in range(2):
        write_run(store, "addition-97", "egd", seed, 40, polar="fast")
    assert counted(gather(store)) == [(0, 40, "fast"), (1, 40, "fast"), (2, None, "exact")]


def test_older_records_count_where_there_are_no_others_and_have_a_label(store: Store) -> None:
    write_run(store, "addition-97", "egd", 0, 30, polar="exact", old=True)
    write_run(store, "addition-97", "egd", 1, 31, polar="fast", old=True)
    write_run(store, "addition-97", "egd", 2, 32, old=True)
    write_run(store, "addition-97", "egd", 3, 33, polar="fast", old=True)
    write_run(store, "addition-97", "egd", 3, 53, polar="fast")
    write_run(store, "parity-3", "egd", 0, 20, old=True)
    write_run(store, "addition-97", "sgd", 0, 90)
    found = gather(store)
    assert counted(found) == [
        (0, 30, "exact (version 1)"),
        (1, 31, "fast to 1e-2 (version 1)"),
        (2, 32, "not said (version 1)"),
        (3, 53, "fast"),
    ]
    assert [run.polar for run in found.of("parity-3", "egd")] == ["exact (version 1)"]
    assert [run.differs for run in found.variants] == [
        "polar factor fast to 1e-2 (version 1): of this seed the run with fast counts"
    ]
    remark = "Older records, of version 1, count where there are no others: addition-97 egd (3), parity-3 egd (1)"
    assert found.remarks == (remark,)
    assert remark in check(store).remarks


def test_an_older_record_of_muon_counts_where_there_is_no_other_and_has_a_label(store: Store) -> None:
    write_run(store, "addition-97", "muon", 0, 30, old=True)
    write_run(store, "addition-97", "muon", 1, 31, old=True)
    write_run(store, "addition-97", "muon", 1, 41)
    found = gather(store)
    assert counted(found, "muon") == [(0, 30, "version 1"), (1, 41, "")]
    assert [run.differs for run in found.variants] == ["polar factor version 1: of this seed the run with version 2 counts"]
    assert found.remarks == ("Older records, of version 1, count where there are no others: addition-97 muon (1)",)


def test_an_older_record_of_both_tiers_says_so(store: Store) -> None:
    """Begun on a CPU and continued on a GPU, which version 1 did."""
    stored = as_earlier(write_run(store, "addition-97", "egd", 0, 29, polar="exact", old=True))
    with (stored.folder / "environment.jsonl").open("a") as file:
        file.write(json.dumps({**stored.environments[0], "polar": "fast", "epoch": 30}) + "\n")
    assert counted(gather(store)) == [(0, 29, "exact, fast to 1e-2 (version 1)")]


def test_an_older_record_of_other_settings_is_a_variant(store: Store) -> None:
    write_run(store, "addition-97", "egd", 0, 30, old=True, changes=["optim.lr=2.0"])
    (variant,) = gather(store).variants
    assert variant.differs == "optim.lr = 2.0 (catalogue: 0.7)"
    assert variant.polar == "not said (version 1)"


def test_a_row_says_what_it_mixes_and_what_is_older(store: Store, tmp_path: Path) -> None:
    for seed in range(3):
        write_run(store, "addition-97", "sgd", seed, 90)
        write_run(store, "addition-97", "egd", seed, 30, polar=("exact", "fast")[seed % 2])
        write_run(store, "addition-97", "egd-after", seed, 14, polar="fast", old=True)
        write_run(store, "addition-79", "egd", seed, 30, polar="fast", old=seed > 0)
        write_run(store, "addition-79", "egd-after", seed, 14, polar="fast")
    write_report(store, tmp_path / "out")
    (table,) = (tmp_path / "out" / "tables").glob("table-2-*.md")
    notes = " ".join(table.read_text().split())
    mixed = "Addition modulo 79, EGD (1 fast, 2 fast to 1e-2 (version 1)); Addition modulo 97, EGD (2 exact, 1 fast)"
    assert f"Rows that pool seeds with the polar factor taken in different ways: {mixed}" in notes
    older = "Addition modulo 97, EGD, decay after (lr 3) (3 fast to 1e-2 (version 1))"
    assert f"Rows of older records, of version 1: {older}" in notes
    csv = (tmp_path / "out" / "summary.csv").read_text()
    assert csv.count("fast to 1e-2 (version 1)") == 5
