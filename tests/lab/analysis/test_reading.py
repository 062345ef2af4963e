"""One stored run: the epochs that its curve keeps, and its snapshots."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from report_records import write_run

from egalitarian.lab.analysis import gather
from egalitarian.lab.analysis.reading import PER_DECADE, is_kept
from egalitarian.lab.config import is_snapshot
from egalitarian.lab.runs import Store


def test_kept_epochs_are_dense_first_and_then_even_in_the_logarithm() -> None:
    kept = [epoch for epoch in range(20000) if is_kept(epoch)]
    assert kept[:20] == list(range(20))
    assert len(kept) <= 400
    steps = [math.log10((after + 1) / (before + 1)) for before, after in zip(kept[-50:], kept[-49:], strict=False)]
    assert max(steps) == pytest.approx(1 / PER_DECADE, rel=0.05)


def test_curves_keep_the_last_epoch_and_snapshots_stay_whole(tmp_path: Path) -> None:
    store = Store(tmp_path)
    write_run(store, "addition-97", "egd", 3, 120)
    found = gather(store)
    assert found.curves.epoch.max() == 125
    assert set(found.curves.seed) == {3}
    snapshots = found.snapshots("addition-97", "egd")
    assert list(snapshots.epoch[:6]) == [0, 1, 2, 3, 4, 5]
    assert snapshots.singular_values[0].shape == (24,)
    assert snapshots.displacement[0].shape == (1024,)
    assert len(found.snapshots("addition-97", "egd", [0])) == 0


def test_every_snapshot_is_kept() -> None:
    """On a GPU a run has spectra of these epochs alone: a condition number that is thinned out of them would end early."""
    assert all(is_kept(epoch) for epoch in range(20_000) if is_snapshot(epoch))
