"""Which methods have curves if there are too many: the first, and the best of each kind."""

from __future__ import annotations

from pathlib import Path

from report_records import write_run

from egalitarian.lab.analysis import gather
from egalitarian.lab.config import catalog
from egalitarian.lab.report.figures.choice import choose
from egalitarian.lab.runs import Store


def test_few_methods_are_kept_in_their_order_without_those_not_run(tmp_path: Path) -> None:
    store = Store(tmp_path)
    for method in ("row-norm", "sgd"):
        write_run(store, "addition-97", method, 0, 20)
    found = gather(store, ["addition-97"])
    assert choose(found, found.experiments, ("sgd", "egd", "row-norm")) == ["sgd", "row-norm"]


def test_of_many_the_first_and_the_best_of_each_optimizer_and_transform(tmp_path: Path) -> None:
    store, cifar = Store(tmp_path), catalog.load("full-cifar")
    for method in cifar.methods:
        good = method in ("sgd-3e-2", "sgd-egd-1e-3", "adam-1e-3", "adam-egd-3e-4")
        write_run(store, "full-cifar", method, 0, 15 if good else None, epochs=20)
    found = gather(store, ["full-cifar"])
    chosen = choose(found, found.experiments, tuple(cifar.methods))
    assert chosen == ["sgd-1e-2", "sgd-3e-2", "sgd-egd-1e-3", "adam-1e-3", "adam-egd-3e-4"]
    assert len(choose(found, found.experiments, tuple(cifar.methods), most=3)) == 3
