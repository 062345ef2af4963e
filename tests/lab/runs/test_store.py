"""The store: records with a checksum are there, damage is an error, and nothing is ever deleted to continue."""

from __future__ import annotations

import errno
import json
import math
import os
import pickle
import resource
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import safetensors
import torch
from report_records import as_earlier
from small import CPU, files, groks, recorded, run, small

from egalitarian.lab.analysis import gather
from egalitarian.lab.config import Run, SpecError
from egalitarian.lab.runs import CONCURRENT, Stop, Store, Stored, StoreError, environment, sweeps
from egalitarian.lab.runs import store as store_module
from egalitarian.lab.runs.files import Checkpoint, Held, Log, acquire, write_atomically

EXPERIMENT = groks()
SEEDS = [6, 0]
SHORT, LONG = Stop(0.9, 3, 1), Stop(0.9, 6, 9)
TENSORS = {"parameters.w": torch.arange(6.0).reshape(2, 3)}


@pytest.fixture(autouse=True)
def save_always(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sweeps, "SAVE_EVERY", 0.0)


def train(root: Path, stop: Stop, seeds: list[int] = SEEDS) -> dict[str, bytes]:
    run(root, EXPERIMENT, "egd", seeds, stop)
    return recorded(root)


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """What training at once gives."""
    return train(tmp_path_factory.mktemp("unbroken"), LONG)


@pytest.fixture
def half(tmp_path: Path) -> Path:
    """A store with runs of three epochs."""
    train(tmp_path / "runs", SHORT)
    return tmp_path / "runs"


def the_run(seed: int = 6) -> Run:
    return Run(EXPERIMENT, "egd", seed, "cpu")


def only(root: Path, pattern: str, seed: int = 6) -> Path:
    (found,) = Store(root).find(the_run(seed)).folder.glob(pattern)
    return found


def a_writer(root: Path, epochs: int, save: bool = True) -> Store:
    """A run of one's own making."""
    store = Store(root)
    with store.open(the_run()) as writer:
        writer.begin(None, {"seeds": 1})
        for epoch in range(epochs):
            writer.append([{"epoch": epoch, "loss": 1 / (epoch + 1)}], {"epoch": epoch, "training": 0.5})
        if save:
            writer.save(epochs, TENSORS, [6])
    return store


# what is kept


def test_what_is_written_is_read(tmp_path: Path) -> None:
    stored = a_writer(tmp_path, 3).find(the_run())
    assert [record["epoch"] for record in stored.records()] == [0, 1, 2]
    assert [timing["epoch"] for timing in stored.timings] == [0, 1, 2]
    assert stored.environments == [{"seeds": 1}]
    (checkpoint,) = stored.checkpoints()
    assert (checkpoint.epoch, checkpoint.batch) == (3, (6,))
    assert torch.equal(checkpoint.tensors()["parameters.w"], TENSORS["parameters.w"])
    assert stored.spec == json.loads(json.dumps(the_run().describe()))


def test_a_folder_is_found_by_experiment_method_and_seed(tmp_path: Path) -> None:
    store = a_writer(tmp_path, 1)
    assert store.folder(the_run()) == tmp_path / "parity-2" / "egd" / f"seed-6-{the_run().id}"
    assert [each.folder for each in store.all()] == [store.folder(the_run())]
    assert list(store.all("addition-97")) == []
    assert store.find(the_run(7)).records() == []


def test_a_trained_run_holds_what_its_docstring_lists(half: Path) -> None:
    names = {path.name for path in Store(half).folder(the_run()).iterdir()}
    listed = {"spec.json", "environment.jsonl", "records.jsonl", "timings.jsonl"}
    assert names - {"lock"} == {*listed, "checkpoint-3.safetensors"}  # some versions of filelock remove the lock
    assert all(name.split("-")[0].removesuffix("<n>") in (store_module.__doc__ or "") for name in names)


def test_records_are_one_line_per_epoch_in_order(half: Path) -> None:
    for seed in SEEDS:
        records = Store(half).find(the_run(seed)).records()
        assert [record["epoch"] for record in records if "snapshot" not in record] == [0, 1, 2]


def test_records_without_a_checksum_do_not_count(tmp_path: Path) -> None:
    store = a_writer(tmp_path, 3)
    with only(tmp_path, "records.jsonl").open("ab") as file:
        file.write(b'{"epoch":3}\n{"epo')
    assert len(store.find(the_run()).records()) == 3
    assert a_writer(tmp_path / "other", 3, save=False).find(the_run()).records() == []


def test_records_are_only_appended_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever was in the file at one save is the beginning of it at the next."""
    seen: dict[Path, list[bytes]] = {}
    save = store_module.Writer.save

    def watched(self: store_module.Writer, *arguments: Any) -> None:
        save(self, *arguments)
        seen.setdefault(self.folder, []).append((self.folder / "records.jsonl").read_bytes())

    monkeypatch.setattr(store_module.Writer, "save", watched)
    train(tmp_path, SHORT)
    train(tmp_path, LONG)
    assert len(seen) == 2
    for contents in seen.values():
        assert len(contents) == 7  # the start, and six epochs
        assert contents[0] == b""
        for before, after in pairwise(contents):
            assert after.startswith(before)
            assert len(after) > len(before)


def test_what_is_not_finite_is_null(tmp_path: Path) -> None:
    store = Store(tmp_path)
    record = {
        "epoch": 0,
        "loss": math.nan,
        "other": math.inf,
        "snapshot": {"values": [1.0, math.nan, -math.inf]},
        "n": None,
    }
    with store.open(the_run()) as writer:
        writer.begin(None, {})
        writer.append([record], {"epoch": 0})
        writer.save(1, TENSORS, [6])
    text = only(tmp_path, "records.jsonl").read_text()
    assert json.loads(text, parse_constant=pytest.fail) == {
        "epoch": 0,
        "loss": None,
        "other": None,
        "snapshot": {"values": [1.0, None, None]},
        "n": None,
    }
    assert math.isnan(record["loss"])  # type: ignore[arg-type]  # the record itself is left as it was


def test_numbers_are_kept_to_the_last_digit(tmp_path: Path) -> None:
    a_writer(tmp_path, 50)
    assert [record["loss"] for record in Store(tmp_path).find(the_run()).records()] == [1 / n for n in range(1, 51)]


def test_an_environment_names_no_person_machine_or_path() -> None:
    found = environment(CPU)
    assert {"torch", "python", "egalitarian", "device", "hardware", "threads", "source", "commit"} <= found.keys()
    assert os.uname().nodename not in found.values()
    assert not any(str(value).startswith(("/", "~")) for value in found.values())
    assert str(Path(__file__).parents[3]) not in json.dumps(found)


@pytest.mark.parametrize("value", ["abc", "", "-1", "1.5", "٣", "9" * 5000])
def test_a_number_of_processes_that_is_none_is_refused(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(CONCURRENT, value)
    with pytest.raises(SpecError, match=f"{CONCURRENT} must be a number of processes, got .*; unset it"):
        environment(CPU)


# damage


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-10])


def edit(path: Path) -> None:
    content = bytearray(path.read_bytes())
    start = content.index(b"0.", 40)
    content[start + 2 : start + 3] = b"7" if content[start + 2 : start + 3] != b"7" else b"3"
    path.write_bytes(bytes(content))


def garble(path: Path) -> None:
    path.write_bytes(b"\x00garbage" * 9)


def empty(path: Path) -> None:
    path.write_bytes(b"")


def foreign(path: Path) -> None:
    safetensors.torch.save_file({"w": torch.zeros(2)}, path)


def of_another_run(path: Path) -> None:
    path.write_text(json.dumps(the_run(99).describe()))


def more_threads(path: Path) -> None:
    path.write_text(path.read_text().replace('"threads":', '"threads":1'))


def a_list(path: Path) -> None:
    path.write_text("[1, 2]")


DAMAGES: dict[str, tuple[str, Callable[[Path], None], str]] = {
    "records cut": (
        "records.jsonl",
        cut,
        "must hold the .* bytes that checkpoint-3.safetensors has a checksum of, got only",
    ),
    "records edited": ("records.jsonl", edit, "has a checksum of, got other bytes: it was cut or edited"),
    "records empty": ("records.jsonl", empty, "got only 0 bytes"),
    "records gone": ("records.jsonl", Path.unlink, "must be as the lab wrote it, got FileNotFoundError"),
    "checkpoint cut": ("checkpoint-3.safetensors", cut, "must be as the lab wrote it"),
    "checkpoint garbled": ("checkpoint-3.safetensors", garble, "must be as the lab wrote it"),
    "checkpoint empty": ("checkpoint-3.safetensors", empty, "must be as the lab wrote it"),
    "checkpoint foreign": ("checkpoint-3.safetensors", foreign, "must be as the lab wrote it, got KeyError"),
    "spec of another run": ("spec.json", of_another_run, "has a checksum of, got"),
    "spec edited": ("spec.json", edit, "has a checksum of, got other bytes: it was cut or edited"),
    "spec gone": ("spec.json", Path.unlink, "must be as the lab wrote it, got FileNotFoundError"),
    "timings cut": ("timings.jsonl", cut, "has a checksum of, got only"),
    "timings edited": ("timings.jsonl", edit, "has a checksum of, got other bytes: it was cut or edited"),
    "timings empty": ("timings.jsonl", empty, "got only 0 bytes"),
    "timings gone": ("timings.jsonl", Path.unlink, "must be as the lab wrote it, got FileNotFoundError"),
    "environment cut": ("environment.jsonl", cut, "has a checksum of, got only"),
    "environment of more threads": ("environment.jsonl", more_threads, "has a checksum of, got other bytes"),
    "environment gone": ("environment.jsonl", Path.unlink, "must be as the lab wrote it, got FileNotFoundError"),
}
IN_OLD_RUNS = {
    "spec of another run": (of_another_run, "must belong to run .*, got"),
    "spec garbled": (garble, "must be as the lab wrote it"),
    "spec a list": (a_list, "must belong to run .*, got None"),
}
"""Of spec.json, in runs of earlier versions."""


@pytest.mark.parametrize("name", DAMAGES)
def test_damage_is_an_error_and_nothing_is_deleted(half: Path, name: str) -> None:
    file, damage, expected = DAMAGES[name]
    path = only(half, file)
    damage(path)
    before = files(half)
    with pytest.raises(StoreError, match=expected) as caught:
        train(half, LONG)
    assert str(path) in str(caught.value)
    assert "; " in str(caught.value).partition(", got ")[2]  # a way out
    assert files(half) == before
    with pytest.raises(StoreError):
        train(half, LONG, [6])
    assert files(half) == before


@pytest.mark.parametrize("name", IN_OLD_RUNS)
def test_the_settings_of_a_run_without_their_checksum_are_still_compared(half: Path, name: str) -> None:
    damage, expected = IN_OLD_RUNS[name]
    as_earlier(Store(half).find(the_run()))
    damage(only(half, "spec.json"))
    before = files(half)
    with pytest.raises(StoreError, match=expected):
        train(half, LONG)
    assert files(half) == before


def test_a_run_of_an_earlier_version_resumes_and_gets_checksums(half: Path, unbroken: dict[str, bytes]) -> None:
    for seed in SEEDS:
        stored = as_earlier(Store(half).find(the_run(seed)))
        assert not stored.has_checksums
        assert (len(stored.timings), len(stored.environments), len(stored.records())) == (3, 1, 6)
    for name in ("timings.jsonl", "environment.jsonl", "spec.json"):
        only(half, name).unlink()  # what nobody could notice then is no error
    assert Store(half).find(the_run()).timings == []
    assert train(half, LONG) == unbroken
    for seed, trained in ((6, 3), (0, 6)):
        stored = Store(half).find(the_run(seed))
        assert stored.has_checksums
        assert len(stored.timings) == trained


@pytest.mark.parametrize("name", [name for name, (file, *_) in DAMAGES.items() if file == "records.jsonl"])
def test_a_damaged_run_that_is_done_is_not_taken_as_read(half: Path, name: str) -> None:
    file, damage, expected = DAMAGES[name]
    damage(only(half, file))
    with pytest.raises(StoreError, match=expected):
        train(half, SHORT)
    with pytest.raises(StoreError, match=expected):
        Store(half).find(the_run()).records()


def losses(content: bytes) -> list[float]:
    return [json.loads(line).get("train_loss") for line in content.splitlines() if b"snapshot" not in line]


def alike(found: dict[str, bytes], expected: dict[str, bytes], name: str) -> bool:
    """To rounding, as another batch of seeds allows: float32, magnified by U Vᵀ in some twenty steps."""
    (one,) = (losses(content) for seed, content in found.items() if seed.startswith(name))
    (other,) = (losses(content) for seed, content in expected.items() if seed.startswith(name))
    return one == pytest.approx(other, rel=1e-3)


def test_a_damaged_run_harms_no_other(half: Path, unbroken: dict[str, bytes]) -> None:
    garble(only(half, "checkpoint-3.safetensors"))
    assert alike(train(half, LONG, [0]), unbroken, "seed-0")


@pytest.mark.parametrize("file", ["records.jsonl", "checkpoint-3.safetensors", "spec.json"])
def test_a_file_that_is_put_back_mends_it(half: Path, unbroken: dict[str, bytes], file: str, tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    shutil.copy(only(half, file), kept)
    garble(only(half, file))
    with pytest.raises(StoreError):
        train(half, LONG)
    shutil.copy(kept, Store(half).folder(the_run()) / file)
    assert train(half, LONG) == unbroken


def test_records_without_any_checkpoint_are_not_thrown_away(half: Path) -> None:
    """A user moved a bad checkpoint away, as the message says: that is no reason to lose the records."""
    only(half, "checkpoint-3.safetensors").unlink()
    before = files(half)
    with pytest.raises(StoreError, match=r"records.jsonl must have a checkpoint with its checksum, got none; restore"):
        train(half, LONG, [6])
    assert files(half) == before


def test_a_folder_that_is_moved_away_is_trained_again(half: Path, unbroken: dict[str, bytes]) -> None:
    folder = Store(half).folder(the_run())
    folder.rename(half / "away")
    kept, before = files(half / "away"), only(half, "records.jsonl", seed=0).read_bytes()
    found = train(half, LONG)
    assert only(half, "records.jsonl", seed=0).read_bytes().startswith(before)  # the other seed resumed
    assert len(Store(half).find(the_run(0)).timings) == LONG.epochs
    assert alike(found, unbroken, "seed-0")
    assert alike({name: found[name] for name in unbroken}, unbroken, "seed-6")
    assert files(half / "away") == kept


@pytest.mark.parametrize("rest", [b'{"epoch":3,"train_l', b'{"epoch":3}\n', b"\x00" * 50, b"\n"])
def test_lines_after_the_checkpoint_are_trained_again(half: Path, unbroken: dict[str, bytes], rest: bytes) -> None:
    with only(half, "records.jsonl").open("ab") as file:
        file.write(rest)
    assert train(half, LONG) == unbroken


@pytest.mark.parametrize(
    ("rest", "earlier"), [('{"epoch":3,"trai', False), ('{"epoch":3}\n', False), ("\n", False), ('{"epoch":3,"trai', True)]
)
@pytest.mark.parametrize("file", ["timings.jsonl", "environment.jsonl"])
def test_lines_after_the_checkpoint_do_not_count(
    half: Path, unbroken: dict[str, bytes], file: str, rest: str, earlier: bool
) -> None:
    path = only(half, file)
    whole = path.read_text()
    path.write_text(whole + rest)
    stored = Store(half).find(the_run())
    if earlier:
        as_earlier(stored)
    assert (len(stored.timings), len(stored.environments)) == (3, 1)
    assert train(half, LONG) == unbroken
    assert path.read_text().startswith(whole)
    lines = stored.timings if file == "timings.jsonl" else stored.environments
    assert lines == [json.loads(line) for line in path.read_text().splitlines()]
    assert len(stored.timings) == 6
    assert len(stored.environments) == 2


def test_a_draft_that_a_kill_left_is_cleared_away(half: Path, unbroken: dict[str, bytes]) -> None:
    draft = Store(half).folder(the_run()) / "checkpoint-4.draft"
    garble(draft)
    assert train(half, LONG) == unbroken
    assert not draft.exists()


def test_a_checkpoint_that_goes_while_one_reads_is_looked_for_again(half: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another process trains: it has written checkpoint-4 and removed checkpoint-3 after its name was read."""
    folder = Store(half).folder(the_run())
    read, calls = Checkpoint.read, []

    def moved(path: Path) -> Any:
        calls.append(path)
        if len(calls) == 1:
            path.rename(folder / "checkpoint-4.safetensors")
        return read(path)

    monkeypatch.setattr(Checkpoint, "read", staticmethod(moved))
    assert len(Stored(folder).records()) == len(recorded(half)[folder.name].splitlines())
    assert len(calls) == 2


def test_a_sealed_run_is_read_but_not_extended(half: Path) -> None:
    records = recorded(half)
    for seed in SEEDS:
        Store(half).find(the_run(seed)).seal()
    before = files(half)
    assert [progress.next_epoch for progress in run(half, EXPERIMENT, "egd", SEEDS, SHORT)] == [3, 3]
    assert all(len(content) < 1000 for name, content in before.items() if name.endswith(".safetensors"))
    with pytest.raises(StoreError, match=r"must have its weights to be trained further, got a sealed run; .*--runs"):
        train(half, LONG)
    assert files(half) == before
    assert recorded(half) == records


# full disks, closed doors


def full(*_: Any, **__: Any) -> Any:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


MESSAGE = r"must be writable, got: .*(No space left|too large).*; the last checkpoint is safe: free some space"


@pytest.mark.parametrize("moment", [0, 1, 2, 3, 5, 8, 13, 21, 27])
def test_a_full_disk_is_an_error_and_the_run_resumes_later(
    tmp_path: Path, unbroken: dict[str, bytes], moment: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = 0
    sync = os.fsync

    def fsync(handle: int) -> None:
        nonlocal calls
        calls += 1
        if calls > moment:
            full()
        sync(handle)

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fsync)
        with pytest.raises(StoreError, match=MESSAGE):
            train(tmp_path / "runs", LONG)
    assert calls == moment + 1
    assert train(tmp_path / "runs", LONG) == unbroken


@pytest.mark.parametrize("moment", [0, 1, 2, 5])
def test_no_room_for_a_checkpoint(
    tmp_path: Path, unbroken: dict[str, bytes], moment: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls, write = 0, Path.write_bytes

    def write_bytes(path: Path, content: bytes) -> int:
        nonlocal calls
        calls += path.name.startswith("checkpoint")
        if calls > moment:
            write(path, b"half of i")
            full()
        return write(path, content)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "write_bytes", write_bytes)
        with pytest.raises(StoreError, match=MESSAGE):
            train(tmp_path / "runs", LONG)
    assert train(tmp_path / "runs", LONG) == unbroken


@pytest.mark.parametrize("moment", [2, 5])
def test_a_folder_that_is_moved_away_is_said_and_the_run_resumes_once_it_is_back(
    tmp_path: Path, unbroken: dict[str, bytes], moment: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No disk is full and no permission is missing, so the message must not send anybody there."""
    calls, write = 0, Path.write_bytes

    def write_bytes(path: Path, content: bytes) -> int:
        nonlocal calls
        calls += path.name.startswith("checkpoint")
        if calls == moment:
            (tmp_path / "runs").rename(tmp_path / "away")
        return write(path, content)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "write_bytes", write_bytes)
        with pytest.raises(
            StoreError, match=r"must stay in place .*, got: No such file .*; it was moved or deleted"
        ) as error:
            train(tmp_path / "runs", LONG)
    assert "checkpoint-" in str(error.value)
    assert "free some space" not in str(error.value)
    (tmp_path / "away").rename(tmp_path / "runs")
    assert train(tmp_path / "runs", LONG) == unbroken


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="Linux has a device that is always full")
@pytest.mark.parametrize("file", ["timings.jsonl", "environment.jsonl"])
def test_a_device_that_is_full(half: Path, unbroken: dict[str, bytes], file: str, monkeypatch: pytest.MonkeyPatch) -> None:
    path = only(half, file)
    whole = path.read_bytes()
    flush = Log.flush

    def flush_to_a_full_device(log: Log) -> Any:
        path.unlink(missing_ok=True)
        path.symlink_to("/dev/full")
        return flush(log)

    with monkeypatch.context() as patch:
        patch.setattr(Log, "flush", flush_to_a_full_device)
        with pytest.raises(StoreError, match=MESSAGE):
            train(half, LONG)
    path.unlink()
    path.write_bytes(whole)
    assert train(half, LONG) == unbroken


@pytest.fixture
def files_are_small() -> Iterator[None]:
    """No file can grow past 20 000 bytes: the kernel's own refusal, in the middle of a write."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, hard))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_records_that_can_be_written_only_in_part(
    half: Path, unbroken: dict[str, bytes], request: pytest.FixtureRequest
) -> None:
    assert max(map(len, recorded(half).values())) < 20_000 < min(map(len, unbroken.values()))
    request.getfixturevalue("files_are_small")
    with pytest.raises(StoreError, match=MESSAGE):
        train(half, LONG)
    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
    assert train(half, LONG) == unbroken


def test_a_file_in_the_place_of_the_folder(tmp_path: Path) -> None:
    (tmp_path / "runs").write_text("not a folder")
    with pytest.raises(StoreError, match=r"must be writable, got: (Not a directory|File exists); .*--runs"):
        train(tmp_path / "runs", SHORT)
    assert (tmp_path / "runs").read_text() == "not a folder"


def refused(self: Path, *_: Any, **__: Any) -> Any:
    raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(self))


@pytest.mark.parametrize("operation", ["mkdir", "open", "replace", "unlink"])
def test_a_folder_that_may_not_be_written_to(
    half: Path, unbroken: dict[str, bytes], monkeypatch: pytest.MonkeyPatch, operation: str
) -> None:
    """Tests may run as root, who may write anywhere: so the refusal is made."""
    before = files(half)
    with monkeypatch.context() as patch:
        patch.setattr(Path, operation, refused)
        with pytest.raises(StoreError, match=r"Permission denied.*; "):
            train(half, LONG)
    assert before.keys() <= files(half).keys()
    assert train(half, LONG) == unbroken


def test_a_lock_is_let_go_when_a_writer_cannot_be_made(half: Path) -> None:
    of_another_run(only(half, "spec.json"))
    for _ in range(2):  # the second finds no process that holds it
        with pytest.raises(StoreError, match=r"spec\.json must hold"):
            Store(half).open(the_run())


# pickles and locks


def test_no_pickle_is_loaded(half: Path, unbroken: dict[str, bytes], monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> Any:
        pytest.fail("a pickle was loaded")

    monkeypatch.setattr(torch, "load", refuse)
    monkeypatch.setattr(pickle, "load", refuse)
    monkeypatch.setattr(pickle, "loads", refuse)
    monkeypatch.setattr(pickle, "Unpickler", refuse)
    assert train(half, LONG) == unbroken


def test_a_checkpoint_is_a_plain_safetensors_file(half: Path) -> None:
    path = only(half, "checkpoint-3.safetensors")
    tensors = safetensors.torch.load_file(path)
    assert {"parameters.hidden.weight", "parameters.hidden.bias", "parameters.output.weight", "egd.step"} <= tensors.keys()
    with safetensors.safe_open(path, "pt") as file:
        assert file.metadata()["company"] == "6,0"


def test_a_run_is_opened_once_at_a_time(tmp_path: Path) -> None:
    store = Store(tmp_path)
    with store.open(the_run()):
        second = f"got a second one while process {os.getpid()} trains it; "
        expected = f"parity-2, egd, seed 6 must be trained by one process at a time, {second}"
        with pytest.raises(StoreError, match=expected):
            store.open(the_run())
        store.open(the_run(0)).close()  # another seed is free
    store.open(the_run()).close()


def test_a_lock_names_its_process_even_after_failed_attempts(tmp_path: Path) -> None:
    held = acquire(tmp_path / "lock")
    for _ in range(2):
        with pytest.raises(Held, match=f"^process {os.getpid()}$"):
            acquire(tmp_path / "lock")
    held.release()
    acquire(tmp_path / "lock").release()


def test_a_killed_process_leaves_no_lock(tmp_path: Path) -> None:
    """SIGKILL: nothing of Python runs any more."""
    path = tmp_path / "lock"
    script = "import sys; from pathlib import Path; from egalitarian.lab.runs.files import acquire; "
    script += "lock = acquire(Path(sys.argv[1])); print('held', flush=True); sys.stdin.read()"
    with subprocess.Popen(
        [sys.executable, "-c", script, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        with pytest.raises(Held, match=f"^process {process.pid}$"):
            acquire(path)
        process.kill()
    acquire(path).release()


def test_a_file_is_replaced_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "table.md"
    write_atomically(path, "old")
    assert path.read_text() == "old"
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(OSError, match="No space left"):
            write_atomically(path, b"new")
    assert [file.name for file in tmp_path.iterdir()] == ["table.md"], "half a draft fills a full disk"
    assert path.read_text() == "old"
    write_atomically(path, b"new")
    assert [file.name for file in tmp_path.iterdir()] == ["table.md"]
    assert path.read_bytes() == b"new"


def test_runs_of_other_settings_lie_side_by_side(tmp_path: Path) -> None:
    stop = Stop(0.9, 1, 1)
    for changes in ((), ("optim.lr=0.06",)):
        run(tmp_path, small("parity-2", *changes, methods=("egd",)), "egd", [0], stop)
    assert len(list(Store(tmp_path).all("parity-2", "egd"))) == 2


def test_a_checkpoint_has_a_checksum_of_its_header(half: Path) -> None:
    """The format has no checksum: one changed digit would let a run resume at another epoch."""
    folder = Store(half).folder(the_run())
    path = next(folder.glob("checkpoint-*.safetensors"))
    content = path.read_bytes()
    assert b'"epoch":"3"' in content
    path.write_bytes(content.replace(b'"epoch":"3"', b'"epoch":"2"'))
    with pytest.raises(StoreError, match="its header is not the one that was saved"):
        Stored(folder).records()


def test_a_checkpoint_of_another_seed_is_refused(half: Path) -> None:
    folders = [Store(half).folder(the_run(seed)) for seed in SEEDS]
    for name in ("records.jsonl", "checkpoint-3.safetensors"):
        (folders[0] / name).write_bytes((folders[1] / name).read_bytes())
    with pytest.raises(StoreError, match=f"a checkpoint of {folders[1].name}"):
        train(half, LONG)


def test_records_without_a_checkpoint_are_a_warning(half: Path) -> None:
    folder = Store(half).folder(the_run())
    next(folder.glob("checkpoint-*.safetensors")).unlink()
    assert any("no checkpoint with their checksum" in warning for warning in gather(Store(half)).warnings)
