"""Evidence: what is packed comes back, and what is damaged is an error that names the file."""

from __future__ import annotations

import errno
import lzma
import math
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from report_records import a_record, write_run
from small import groks, run

from egalitarian.lab.analysis import gather, powers
from egalitarian.lab.config import FOURIER, KEPT, LEARNING, SPECTRUM_BITS, Coarse, Run, is_kept, single
from egalitarian.lab.runs import Evidence, Stop, Store, Stored, StoreError, open_source, pack

EXPERIMENT = groks()


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Store:
    """Two seeds of 140 epochs: some are not kept."""
    root = tmp_path_factory.mktemp("trained")
    run(root, EXPERIMENT, "egd", [6, 0], Stop(1.0, 140, 1))
    return Store(root)


@pytest.fixture
def evidence(trained: Store, tmp_path: Path) -> Evidence:
    assert pack(trained, tmp_path / "evidence", everything=True).errors == []
    return Evidence(tmp_path / "evidence")


def only_file(evidence: Evidence) -> Path:
    (path,) = evidence.root.iterdir()
    return path


def test_every_epoch_comes_back(trained: Store, evidence: Evidence) -> None:
    """Accuracies bit for bit, losses as float32; what only figures read, at the epochs that they keep."""
    for stored in trained.each():
        (packed,) = [each for each in evidence.each() if each.folder.name == stored.folder.name]
        before, after = stored.epochs(), packed.epochs()
        assert [record["epoch"] for record in after] == list(range(140))
        for old, new in zip(before, after, strict=True):
            kept = is_kept(old["epoch"]) or old is before[-1]
            assert set(new) == {"epoch", *(set(LEARNING) & set(old)), *(set(KEPT) & set(old) if kept else ())}
            for name in set(new) - {"epoch"}:
                assert new[name] == (old[name] if "accuracy" in name else float(np.float32(old[name])))


def test_snapshots_come_back_as_reports_read_them(trained: Store, evidence: Evidence) -> None:
    stored = next(each for each in trained.each() if "seed-0" in each.folder.name)
    packed = evidence.find(Run(EXPERIMENT, "egd", 0, "cpu"))
    assert packed is not None
    pairs = list(zip(stored.snapshots(), packed.snapshots(), strict=True))
    assert len(pairs) == 20
    for old, new in pairs:
        assert old.epoch == new.epoch
        assert old.displacement is not None
        assert np.array_equal(new.displacement, Coarse.of(old.displacement).vector())
        assert new.singular_values is None, "no figure of the report shows the spectra of parity"


def test_spectra_that_a_figure_shows_are_packed(tmp_path: Path) -> None:
    stored = write_run(store := Store(tmp_path / "runs"), "addition-97", "egd", 0, 20)
    pack(store, tmp_path)
    (packed,) = Evidence(tmp_path).each()
    for old, new in zip(stored.snapshots(), packed.snapshots(), strict=True):
        assert old.singular_values is not None
        assert np.array_equal(new.singular_values, single(old.singular_values, SPECTRUM_BITS))


def test_fourier_measures_come_back_where_a_run_has_some(tmp_path: Path) -> None:
    store = Store(tmp_path / "runs")
    stored = write_run(store, "addition-97-fourier", "egd", 0, 20)
    write_run(store, "addition-97", "egd", 0, 20)
    assert pack(store, tmp_path / "evidence").errors == []
    evidence = Evidence(tmp_path / "evidence")
    (packed,), (without,) = evidence.of("addition-97-fourier"), evidence.of("addition-97")
    for old, new in zip(stored.snapshots(), packed.snapshots(), strict=True):
        assert old.fourier_power is not None
        assert np.array_equal(new.fourier_power, single(old.fourier_power, SPECTRUM_BITS))
    for old, new in zip(stored.epochs(), packed.epochs(), strict=True):
        assert {name: new.get(name) for name in FOURIER} == {
            name: float(np.float32(old[name])) if name in old else None for name in FOURIER
        }
    assert all(snapshot.fourier_power is None for snapshot in without.snapshots())
    assert not set(FOURIER) & set(without.columns)


def test_a_run_that_was_measured_from_later_on_is_packed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It was begun without Fourier measures, and went on with them. Reports leave out what is not there."""
    store = Store(tmp_path / "runs")
    stored = write_run(store, "addition-97-fourier", "egd", 0, 20)
    late = [each if each.epoch > 5 else each._replace(fourier_power=None) for each in stored.snapshots()]
    monkeypatch.setattr(Stored, "snapshots", lambda self: late)
    assert pack(store, tmp_path / "evidence").errors == []
    both = [powers(gather(source), "addition-97-fourier", "egd", 0) for source in (store, Evidence(tmp_path / "evidence"))]
    assert np.array_equal(both[0][0], both[1][0])
    assert np.array_equal(both[0][1], both[1][1])
    assert both[0][0].min() == 6


def test_settings_environment_and_time_come_back(trained: Store, evidence: Evidence) -> None:
    for stored in trained.each():
        (packed,) = [each for each in evidence.each() if each.folder.name == stored.folder.name]
        assert packed.spec == stored.spec
        assert packed.environments == stored.environments
        assert packed.time_spent == stored.time_spent
        assert packed.experiment == stored.experiment


@pytest.mark.parametrize("points", [1, 7, 4705, 10_000, 60_000])
@pytest.mark.parametrize("divide", [lambda count, points: count / points, lambda count, points: count * (1 / points)])
def test_accuracies_are_counts_and_come_back_bit_for_bit(
    points: int, divide: Callable[[int, int], float], tmp_path: Path
) -> None:
    """A CPU divides. A GPU multiplies by the inverse, which may differ in the last bit."""
    counts = np.random.default_rng(points).integers(0, points + 1, 200).tolist()
    values = [divide(count, points) for count in counts]
    store = Store(tmp_path / "runs")
    write_run(store, "addition-97", "egd", 0, epochs=200, learnt=lambda epoch: values[epoch])
    pack(store, tmp_path)
    (packed,) = Evidence(tmp_path).each()
    assert [record["train_accuracy"] for record in packed.epochs()] == values
    assert packed.columns["train_accuracy"].numbers.tolist() == counts


def test_accuracies_that_are_no_counts_come_back_too(tmp_path: Path) -> None:
    store = Store(tmp_path / "runs")
    values = [*np.random.default_rng(0).random(30).tolist(), math.nan]
    stored = write_run(store, "addition-97", "egd", 0, epochs=31, learnt=lambda epoch: values[epoch])
    pack(store, tmp_path)
    (packed,) = Evidence(tmp_path).each()
    assert [record["train_accuracy"] for record in packed.epochs()] == [
        record["train_accuracy"] for record in stored.epochs()
    ]


def test_a_run_that_diverged_is_one_in_the_evidence(tmp_path: Path) -> None:
    store = Store(tmp_path / "runs")
    write_run(store, "addition-97", "egd", 0, epochs=30, diverged=True)
    pack(store, tmp_path)
    assert [each.state for each in gather(Evidence(tmp_path)).runs] == ["diverged"]


def test_a_huge_loss_is_no_divergence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of float64 training. In float32 it would be infinite."""
    monkeypatch.setattr("report_records.a_record", lambda *about: a_record(*about) | {"train_loss": 1e300})
    store = Store(tmp_path / "runs")
    write_run(store, "addition-97", "egd", 0, epochs=30)
    pack(store, tmp_path)
    assert [each.outcome.diverged for each in gather(Evidence(tmp_path)).runs] == [False]


def test_older_records_are_labelled_as_in_the_store(tmp_path: Path) -> None:
    store = Store(tmp_path / "runs")
    write_run(store, "addition-97", "egd", 0, 20, old=True)
    write_run(store, "addition-97", "egd", 1, 20)
    methods = write_run(store, "addition-97", "row-norm", 0, 20).folder.parent
    methods.rename(methods.with_name("column-norm"))  # its name in version 1
    pack(store, tmp_path)
    before, after = gather(store), gather(Evidence(tmp_path))
    assert after.runs == before.runs
    assert sorted((run.method, run.seed, run.old) for run in after.runs) == [
        ("egd", 0, True), ("egd", 1, False), ("row-norm", 0, False),
    ]  # fmt: skip
    assert after.remarks == before.remarks


# damage


def content(path: Path) -> bytes:
    return lzma.decompress(path.read_bytes())


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda path: path.read_bytes()[:-100], "end-of-stream"),
        (lambda path: path.read_bytes()[:3000] + b"\0\0\0\0" + path.read_bytes()[3004:], "bytes of numbers instead of"),
        (lambda path: b"not xz at all", "format not supported"),
        (lambda path: lzma.compress(b"of somebody else\n"), "is incomplete or damaged: Expecting value"),
        (lambda path: lzma.compress(b"[1]\n"), "another format"),
        (lambda path: lzma.compress(content(path).replace(b"evidence 1", b"evidence 9", 1)), "another format"),
        (lambda path: lzma.compress(content(path)[:-8]), "bytes of numbers instead of"),
        (lambda path: lzma.compress(content(path).partition(b"\n")[0] + b"\n"), "0 bytes of numbers instead of"),
    ],
)
def test_a_damaged_file_is_an_error_that_names_it(
    evidence: Evidence, damage: Callable[[Path], bytes], message: str
) -> None:
    path = only_file(evidence)
    path.write_bytes(damage(path))
    with pytest.raises(StoreError, match=message) as error:
        list(evidence.each())
    assert str(error.value).startswith(f"{path} is incomplete or damaged: ")
    assert str(error.value).endswith("; copy it again, or delete it and run `egalitarian pack`")
    assert "Error" not in str(error.value), "the name of Python's error says nothing to a user"


def test_a_file_that_may_not_be_read_is_not_called_damaged(evidence: Evidence, monkeypatch: pytest.MonkeyPatch) -> None:
    path = only_file(evidence)

    def refuse(path: Path) -> bytes:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))

    monkeypatch.setattr(Path, "read_bytes", refuse)
    with pytest.raises(StoreError, match=f"{path} must be readable, got: Permission denied; fix the permissions"):
        list(evidence.each())


def test_damage_is_a_warning_of_those_who_read_the_file(tmp_path: Path) -> None:
    """Reports skip it, and other experiments are read as if it were whole. They do not even open it."""
    for experiment in ("addition-79", "addition-97"):
        write_run(Store(tmp_path / "runs"), experiment, "egd", 0, 20)
    pack(Store(tmp_path / "runs"), tmp_path / "evidence")
    evidence, path = Evidence(tmp_path / "evidence"), tmp_path / "evidence" / "addition-97.xz"
    path.write_bytes(path.read_bytes()[:-100])
    both, other = gather(evidence), gather(evidence, ["addition-79"])
    assert [run.experiment for run in both.runs] == [run.experiment for run in other.runs] == ["addition-79"]
    assert [warning.partition(":")[0] for warning in both.warnings] == ["addition-97.xz is incomplete or damaged"]
    assert other.warnings == ()


def test_a_folder_is_a_store_or_evidence(trained: Store, evidence: Evidence, tmp_path: Path) -> None:
    assert isinstance(open_source(trained.root), Store)
    assert isinstance(open_source(evidence.root), Evidence)
    assert isinstance(open_source(tmp_path / "nothing"), Store)
    (tmp_path / "evidence" / "parity-2" / "egd" / "seed-0-0").mkdir(parents=True)
    with pytest.raises(StoreError, match="stored runs or evidence, got both"):
        open_source(evidence.root)
