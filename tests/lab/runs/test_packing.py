"""Packing: the same runs give the same bytes, longer runs replace shorter ones, and nothing is replaced in silence."""

from __future__ import annotations

import json
import lzma
import shutil
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from report_records import write_run
from small import files, law

from egalitarian.lab.analysis import gather, plane_of
from egalitarian.lab.runs import Evidence, Packed, Store, pack
from egalitarian.lab.runs.packing import _listed, _sketched


def fill(store: Store, seeds: range = range(3), crossed: int = 20) -> Store:
    for experiment in ("addition-79", "addition-97"):
        for method in ("egd", "sgd"):
            for seed in seeds:
                write_run(store, experiment, method, seed, crossed)
    return store


def test_the_same_runs_give_the_same_bytes(tmp_path: Path) -> None:
    """At once or bit by bit, from a store or from evidence."""
    at_once = tmp_path / "at once"
    pack(fill(Store(tmp_path / "runs")), at_once)
    pack(fill(Store(tmp_path / "early"), range(2)), tmp_path / "by and by")
    pack(fill(Store(tmp_path / "late"), range(1, 3)), tmp_path / "by and by")
    pack(Evidence(at_once), tmp_path / "again")
    assert files(at_once).keys() == {"addition-79.xz", "addition-97.xz"}
    assert files(tmp_path / "again") == files(at_once)
    assert files(tmp_path / "by and by") == files(at_once)


def test_packing_again_writes_nothing(tmp_path: Path) -> None:
    store = fill(Store(tmp_path / "runs"))
    first, *_ = pack(store, tmp_path / "evidence")
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "evidence").iterdir()}
    again, errors, _ = pack(store, tmp_path / "evidence")
    assert errors == []
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "evidence").iterdir()} == before
    assert [(row.new, row.longer) for row in first] == [(6, 0)] * 2
    assert [(row.new, row.longer) for row in again] == [(0, 0)] * 2
    assert [row.size for row in again] == [path.stat().st_size for path in sorted(before)]


@pytest.mark.parametrize("longer_first", [False, True])
def test_more_epochs_replace_fewer(tmp_path: Path, longer_first: bool) -> None:
    for name, epochs in (("long", 40), ("short", 20)) if longer_first else (("short", 20), ("long", 40)):
        write_run(store := Store(tmp_path / name), "addition-97", "egd", 0, epochs=epochs)
        write_run(store, "addition-97", "egd", 1, epochs=5)
        (row,), errors, _ = pack(store, tmp_path / "evidence")
        assert errors == []
    assert [len(each.epochs()) for each in Evidence(tmp_path / "evidence").each()] == [40, 5]
    assert (row.runs, row.epochs, row.new, row.longer) == (2, 45, 0, int(not longer_first))


def test_another_run_of_the_same_id_is_an_error(tmp_path: Path) -> None:
    """The file stays as it is, other files are written, and --replace takes the new run."""
    first, second = Store(tmp_path / "first"), Store(tmp_path / "second")
    write_run(first, "addition-97", "egd", 0, 20, epochs=40)
    write_run(second, "addition-97", "egd", 0, 21, epochs=40)
    write_run(second, "parity-2", "egd", 0, 21)
    pack(first, tmp_path / "evidence")
    before = files(tmp_path / "evidence")
    written, errors, _ = pack(second, tmp_path / "evidence")
    assert [row.experiment for row in written] == ["parity-2"]
    assert len(errors) == 1
    assert errors[0].startswith("addition-97: egd 0: ")
    assert "addition-97/egd/seed-0" in errors[0]
    assert "must have the same 40 epochs wherever it is stored" in errors[0]
    assert "--replace" in errors[0]
    assert files(tmp_path / "evidence")["addition-97.xz"] == before["addition-97.xz"]
    assert pack(second, tmp_path / "evidence", replace=True).errors == []
    assert [run.outcome.crossed for run in gather(Evidence(tmp_path / "evidence"), ["addition-97"]).runs] == [21]


def test_a_damaged_run_is_an_error_and_the_others_are_packed(tmp_path: Path) -> None:
    store = fill(Store(tmp_path / "runs"))
    bad, lost, *_ = sorted(each.folder for each in store.each())
    (bad / "records.jsonl").write_text("edited")
    for path in lost.glob("checkpoint-*"):
        path.unlink()
    written, errors, _ = pack(store, tmp_path / "evidence")
    assert [row.runs for row in written] == [4, 6]
    assert any(str(bad) in error for error in errors)
    assert any(f"{lost} must have a checkpoint" in error for error in errors)


def test_damaged_evidence_is_an_error_and_is_not_written_over(tmp_path: Path) -> None:
    store = fill(Store(tmp_path / "runs"))
    (tmp_path / "evidence").mkdir()
    (path := tmp_path / "evidence" / "addition-97.xz").write_bytes(b"damaged")
    written, errors, _ = pack(store, tmp_path / "evidence")
    assert [row.experiment for row in written] == ["addition-79"]
    assert len(errors) == 1
    assert errors[0].startswith(f"addition-97: egd 0-2, sgd 0-2: {path} is incomplete or damaged: "), "what is left out"
    assert path.read_bytes() == b"damaged"


def test_damaged_evidence_as_a_source_is_an_error_and_the_rest_is_packed(tmp_path: Path) -> None:
    pack(fill(Store(tmp_path / "runs")), tmp_path / "one")
    (path := tmp_path / "one" / "addition-79.xz").write_bytes(b"damaged")
    written, errors, _ = pack(Evidence(tmp_path / "one"), tmp_path / "other")
    assert [row.experiment for row in written] == ["addition-97"]
    assert [error.partition(" is ")[0] for error in errors] == [str(path)]


def test_what_is_not_packed_is_named_by_method_and_seeds() -> None:
    seeds = {"egd": (7, 0, 2, 1), "sgd": (3,), "row-norm": (5, 4, 9)}
    runs = [a_packed(method, seed) for method, own in seeds.items() for seed in own]
    assert _listed(runs) == "egd 0-2 7, row-norm 4-5 9, sgd 3"


def test_unfinished_runs_are_counted(tmp_path: Path) -> None:
    """As in reports: neither passed nor diverged, with epochs left. What was packed before counts, too."""
    store = Store(tmp_path / "runs")
    write_run(store, "addition-97", "egd", 0, 20)
    write_run(store, "addition-97", "egd", 1, epochs=20, diverged=True)
    write_run(store, "addition-97", "egd", 2, epochs=20)
    write_run(store, "addition-97", "egd", 3)
    (row,) = pack(store, tmp_path / "evidence").written
    assert (row.runs, row.unfinished) == (4, 1)
    states = {run.seed: run.state for run in gather(Evidence(tmp_path / "evidence")).runs}
    assert [seed for seed, state in states.items() if state == "unfinished"] == [2]
    write_run(late := Store(tmp_path / "late"), "addition-97", "egd", 4, 20)
    (row,) = pack(late, tmp_path / "evidence").written
    assert (row.runs, row.new, row.unfinished) == (5, 1, 1)


def test_runs_that_reports_do_not_count_are_packed_only_when_asked(tmp_path: Path) -> None:
    """Those of other settings, as `tune` and --set train them. Either tier and older records count."""
    store = Store(tmp_path / "runs")
    write_run(store, "addition-97", "egd", 0, 20, polar="exact")
    write_run(store, "addition-97", "egd", 0, 20, polar="fast")
    write_run(store, "addition-97", "egd", 0, 20, old=True)
    write_run(store, "addition-97", "egd", 0, 20, changes=["optim.lr=2.0"])
    write_run(store, "addition-97", "row-norm", 0, 20).folder.parent.rename(store.root / "addition-97" / "column-norm")
    shutil.copytree(store.root / "addition-97", store.root / "mine")  # an experiment that the lab does not know
    shutil.copytree(store.root / "addition-97" / "egd", store.root / "addition-97" / "gone")  # a method of no experiment
    written, errors, others = pack(store, tmp_path / "evidence")
    assert ([(row.experiment, row.runs) for row in written], errors) == ([("addition-97", 4), ("mine", 5)], [])
    assert others == {"addition-97": 5}
    assert not [run for run in gather(Evidence(tmp_path / "evidence"), ["addition-97"]).variants if "lr" in run.differs]
    written, errors, others = pack(store, tmp_path / "evidence", everything=True)
    assert ([(row.experiment, row.runs) for row in written], errors, others) == ([("addition-97", 9), ("mine", 5)], [], {})
    assert len(gather(Evidence(tmp_path / "evidence")).variants) == len(gather(store).variants) > 5


# sketches: of the seeds whose paths a figure can draw


def a_packed(method: str, seed: int) -> Packed:
    return Packed(Path(method, f"seed-{seed}"), {"spec": {"settings": method, "seed": seed}, "epochs": 1}, {})


@law
@given(st.lists(st.sets(st.integers(0, 6), min_size=1), min_size=1, max_size=4))
def test_the_seed_that_any_methods_share_first_is_kept(methods: list[set[int]]) -> None:
    kept = _sketched([a_packed(f"{index}", seed) for index, seeds in enumerate(methods) for seed in seeds])
    for chosen in range(1, 1 << len(methods)):
        shared = set.intersection(*(seeds for index, seeds in enumerate(methods) if chosen >> index & 1))
        assert not shared or min(shared) in kept


def test_one_seed_is_kept_where_all_methods_have_the_same() -> None:
    assert _sketched([a_packed(method, seed) for method in "abc" for seed in (2, 3, 5)]) == {2}


def test_a_path_without_its_sketch_is_an_error(tmp_path: Path) -> None:
    """Evidence of all seeds has the sketches of the first alone. A method that lacks this seed needs another."""
    store = Store(tmp_path / "runs")
    for seed in range(3):
        write_run(store, "addition-97", "egd", seed, 20)
    pack(store, tmp_path / "evidence")
    shutil.rmtree(store.root)
    write_run(store, "addition-97", "sgd", 1, 20)
    pack(store, tmp_path / "evidence")
    gathered = gather(Evidence(tmp_path / "evidence"))
    assert plane_of(gathered, "addition-97", ["egd"], 0) is not None
    with pytest.raises(LookupError, match="displacement must be packed for seed 1, got evidence without"):
        plane_of(gathered, "addition-97", ["egd", "sgd"], 1)


def test_a_file_is_a_line_of_json_and_numbers(tmp_path: Path) -> None:
    """Any version of xz reads it. No time of writing and no path of this machine is in it."""
    pack(fill(Store(tmp_path / "runs")), tmp_path / "evidence")
    line, _, body = lzma.decompress((tmp_path / "evidence" / "addition-97.xz").read_bytes()).partition(b"\n")
    head = json.loads(line)
    assert head["size"] == len(body)
    assert [run["folder"].split("-")[:2] for run in head["runs"]] == [
        [f"{method}/seed", f"{seed}"] for method in ("egd", "sgd") for seed in range(3)
    ]
    assert str(tmp_path).encode() not in line
