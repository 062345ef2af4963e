"""Tables 6 to 8: steps, final accuracies, means over epochs."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from report_records import write_accuracies, write_run

from egalitarian.lab.analysis import Gathered, check, gather
from egalitarian.lab.report import Table, write_report
from egalitarian.lab.report.tables import build_table
from egalitarian.lab.report.write import contents_for
from egalitarian.lab.runs import Store


@pytest.fixture(scope="module")
def gathered(tmp_path_factory: pytest.TempPathFactory) -> Gathered:
    return gather(write_accuracies(Store(tmp_path_factory.mktemp("runs"))))


def table(gathered: Gathered, name: str) -> Table:
    contents = contents_for(gathered)
    return build_table(next(plan for plan in contents.tables if plan.name == name), contents, gathered)


def row(found: Table, title: str, block: str = "CIFAR-10, labels shuffled 3 times") -> tuple[str, ...]:
    rows = [cells for each in found.blocks if each.heading.startswith(block) for cells in each.rows]
    return next(cells for cells in rows if cells[0] == title)


def test_table_8_has_means_in_percent_a_diverged_seed_and_the_gain(gathered: Gathered) -> None:
    found = table(gathered, "table-8-non-stationarity")
    assert row(found, "Adam")[1:] == ("24.7", "30.0 (20.0–40.0)", "3", "–")
    assert row(found, "Adam with EGD")[1:] == ("56.0", "60.0", "3", "2.3× / 2.0×")
    assert row(found, "RAdam")[1:] == ("22.9", "22.9, 1 diverged", "2", "–")
    assert row(found, "RAdam with EGD")[1:] == ("47.3", "1 unfinished", "–", "2.1× / –")
    assert row(found, "RMSprop")[1:] == ("31.6", "not run", "–", "–")


def test_table_6_has_steps_times_a_step_and_the_end_of_the_full_length_run(gathered: Gathered) -> None:
    found = table(gathered, "table-6-mnist")
    egd = row(found, "EGD", "MNIST")
    assert egd[1:6] == ("700", "800 (700–900)", "3/3", "61.6× / –", "2.2×")
    assert egd[6] == "34.7 / 0.02"
    assert egd[8].startswith("91.9 / 100.0")
    fair = row(found, "AdamW, the same decay (ours: the fair baseline)", "MNIST, 1000 images: not in the paper")
    assert fair[2:4] == ("1800", "3/3")
    assert row(found, "EGD, randomized, rank 16", "MNIST")[3] == "0/3, 1 diverged"
    assert row(found, "EGD, randomized, rank 16", "MNIST")[8] == "91.3 / 1 diverged"
    assert "No full-length run yet, so no final accuracy: EGD, randomized, rank 16; AdamW, the same decay" in found.notes
    record = next(each for each in found.records if each["method"] == "egd")
    assert (record["paper_steps"], record["median"], record["full_length_runs"]) == (700, "800", 1)


def test_seeds_with_polar_factors_of_two_kinds_are_noted(gathered: Gathered) -> None:
    (note,) = [note for note in table(gathered, "table-6-mnist").notes if "polar" in note]
    assert note.endswith("taken in different ways: MNIST, 1000 images, EGD (2 exact, 1 fast)")


def test_where_nothing_groks_the_table_is_of_final_accuracies(tmp_path: Path) -> None:
    store = Store(tmp_path)
    for seed in range(3):
        write_run(store, "full-cifar", "adam-3e-4", seed, learnt=lambda epoch: 0.75, diverged=seed == 2)
    found = table(gather(store), "full-cifar")
    assert found.title == "Where nothing groks: all of CIFAR-10: final test accuracy"
    ((cells,),) = [block.rows for block in found.blocks]
    assert re.fullmatch(r"[\d.]+( \([\d.]+–[\d.]+\))?, 1 diverged", cells[1])
    assert cells[2:] == ("75.0", "2")
    assert not check(store).remarks, "that it has no claims is said where it is asked for"
    report = write_report(store, tmp_path / "out")
    assert report.complete
    assert report.cost[0].startswith("Where nothing groks: all of CIFAR-10: final test accuracy: ")
