"""What a caption says of seeds and methods that a figure does not show."""

from __future__ import annotations

from pathlib import Path

from report_records import write_run

from egalitarian.lab.analysis import gather
from egalitarian.lab.report.figures import FIGURES, caption_of
from egalitarian.lab.report.figures.choice import remarks_of
from egalitarian.lab.runs import Store

METHODS = ("sgd", "egd", "row-norm")


def test_seeds_that_fail_are_counted_and_methods_not_run_are_named(tmp_path: Path) -> None:
    store = Store(tmp_path)
    for seed, crossed in enumerate([20, None]):
        write_run(store, "addition-97", "egd", seed, crossed)
    write_run(store, "addition-97", "sgd", 0, epochs=5)
    found = gather(store, ["addition-79", "addition-97"])
    assert remarks_of(found, found.experiments, METHODS) == (
        "Addition modulo 79: not run. "
        "Addition modulo 97: 0 of 1 seeds pass, 1 unfinished: SGD; 1 of 2 seeds pass: EGD; not run: row norm."
    )


def test_where_all_pass_there_is_nothing_to_remark(tmp_path: Path) -> None:
    store = Store(tmp_path)
    write_run(store, "addition-97", "egd", 0, 20)
    found = gather(store, ["addition-97"])
    assert remarks_of(found, found.experiments, ["egd"]) == ""


def test_a_caption_says_that_methods_are_left_out_if_they_are(tmp_path: Path) -> None:
    store = Store(tmp_path)
    write_run(store, "addition-97", "egd", 0, 20)
    found = gather(store, ["addition-97"])
    methods = tuple(found.experiments[0].methods)
    assert caption_of("curves", found, found.experiments, ["egd"]) == FIGURES["curves"].caption
    assert f"Of {len(methods)} methods it shows the first" in caption_of("curves", found, found.experiments, methods)
    assert "it shows the first" not in caption_of("costs", found, found.experiments, methods)
