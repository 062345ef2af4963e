"""One stored run: the epochs that its curve keeps, and its snapshots."""

from __future__ import annotations

from pathlib import Path

from report_records import write_run

from egalitarian.lab.analysis import gather
from egalitarian.lab.runs import Store


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
