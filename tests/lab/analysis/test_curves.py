"""The numbers behind figures: bands over seeds, quantiles of spectra, trajectories in their plane."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from report_records import SPECTRUM, a_seed, write_curves, write_run

from egalitarian.lab.analysis import Gathered, band, common_seed, fan, gather, powers, survival
from egalitarian.lab.analysis.curves import project
from egalitarian.lab.config import SPECTRUM_BITS, single
from egalitarian.lab.runs import Store

NAMED = ["addition-79", "addition-97", "addition-127"]


@pytest.fixture(scope="module")
def gathered(tmp_path_factory: pytest.TempPathFactory) -> Gathered:
    return gather(write_curves(Store(tmp_path_factory.mktemp("runs"))), NAMED)


def test_a_seed_that_has_passed_stays_passed_and_the_line_ends_with_half_of_them(gathered: Gathered) -> None:
    found = band(gathered, "addition-97", "egd", "test_accuracy", hold=True)
    at = dict(zip(found.epochs.astype(int), zip(found.low, found.middle, found.high, strict=True), strict=True))
    assert at[19][1] < 0.95
    assert at[61][1] > 0.95, "the median seed has passed, though the slow one is all that is left"
    last = found.epochs[np.isfinite(found.middle)][-1]
    assert 60 < last <= 65, "the median seed stops at 65"
    assert found.epochs[np.isfinite(found.low)][-1] > 100


def test_without_hold_only_seeds_in_training_count(gathered: Gathered) -> None:
    found = band(gathered, "addition-97", "egd", "distance")
    held = dict(zip(found.epochs.astype(int), found.high, strict=True))
    assert held[94] == pytest.approx(10 * np.log1p(94))


def test_a_band_has_no_points_where_nothing_was_measured(tmp_path: Path) -> None:
    """Fourier measures and spectra may be read in snapshots alone: a line between them is no measurement either."""
    write_run(store := Store(tmp_path), "addition-97-fourier", "egd", 0, 20)
    found = band(gather(store), "addition-97-fourier", "egd", "excluded_loss")
    assert found.epochs.tolist() == [0, 1, 2, 3, 4, 5, 6, 8, 10, 13, 16, 20, 25]
    assert found.middle == pytest.approx(1 + 3 * found.epochs / (found.epochs + 20))


def test_powers_are_those_of_a_runs_snapshots(tmp_path: Path, gathered: Gathered) -> None:
    write_run(store := Store(tmp_path), "addition-97-fourier", "egd", 3, 20)
    _, shares = powers(gather(store), "addition-97-fourier", "egd", 3)
    assert shares.shape == (13, 48)
    assert shares[-1, 9] == pytest.approx(26 / 73, rel=1e-3)
    nothing = [(gather(store), "addition-97-fourier", None), (gathered, "addition-97", 0)]
    for source, experiment, seed in nothing:
        assert [len(part) for part in powers(source, experiment, "egd", seed)] == [0, 0]


def test_the_fan_is_the_spectrums_quantiles(gathered: Gathered) -> None:
    epochs, quantiles = fan(gathered.snapshots("addition-97", "egd"))
    assert list(epochs[:4]) == [0, 1, 2, 3]
    assert epochs[-1] == 63, "after that fewer than half of the seeds are left"
    values = single(np.geomspace(0.1, 0.0005, SPECTRUM), SPECTRUM_BITS)
    assert quantiles[0] == pytest.approx(np.quantile(values, (0, 0.1, 0.25, 0.5, 0.75, 0.9, 1)), rel=1e-5)


def test_the_fan_leaves_rounding_noise_out() -> None:
    spectrum = np.array([1.0, 0.5, 1e-9])
    _, quantiles = fan(pd.DataFrame({"seed": [0], "epoch": [0], "singular_values": [spectrum]}))
    assert quantiles[0, 0] == 0.5


def test_the_plane_of_flat_paths_is_theirs() -> None:
    basis = np.linalg.qr(np.random.default_rng(0).normal(size=(50, 2)))[0].T
    flat = {"a": np.array([[1.0, 0.0], [2.0, 1.0]]), "b": np.array([[0.0, 3.0], [1.0, 4.0], [2.0, 8.0]])}
    plane = project({name: (np.arange(float(len(points))), points @ basis) for name, points in flat.items()})
    assert plane.shares.sum() == pytest.approx(1)
    for name, points in flat.items():
        path = plane.trajectories[name]
        assert path.epochs[0] == -1
        steps = np.linalg.norm(np.diff(path.points, axis=0), axis=1)
        assert steps == pytest.approx(np.linalg.norm(np.diff(np.vstack([[0, 0], points]), axis=0), axis=1))
    assert plane.trajectories["a"].points[0] == pytest.approx(plane.trajectories["b"].points[0])


def test_a_run_that_has_not_moved_has_a_plane() -> None:
    plane = project({"a": (np.array([0.0]), np.zeros((1, 5)))})
    assert plane.shares.tolist() == [0, 0]


def test_trajectories_are_of_a_seed_that_all_methods_have(gathered: Gathered) -> None:
    assert common_seed(gathered, "addition-97", ["sgd", "egd"]) == 1
    assert common_seed(gathered, "addition-97", []) is None


def test_the_share_that_has_passed_rises_with_every_seed_and_stays_until_the_last_is_trained() -> None:
    epochs, shares = survival([a_seed(60, 66), a_seed(20, 26), a_seed(None, 1000), a_seed(60, 66)])
    assert epochs.tolist() == [0, 20, 60, 60, 999]
    assert shares.tolist() == [0, 0.25, 0.5, 0.75, 0.75]
    epochs, shares = survival([a_seed(20, 26)])
    assert (epochs.tolist(), shares.tolist()) == ([0, 20, 20], [0, 1, 1])


def test_a_band_up_to_an_epoch_has_no_later_one(gathered: Gathered) -> None:
    found = band(gathered, "addition-97", "egd", "distance")
    assert found.until(40).epochs[-1] == 40
    assert found.until(1e9).epochs.tolist() == found.epochs.tolist()
