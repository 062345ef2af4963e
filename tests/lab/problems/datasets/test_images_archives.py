"""Fetching a data set: what is fetched, unpacked and kept, by one process at a time."""

from __future__ import annotations

import hashlib
import multiprocessing
import os
import shutil
import signal
import time
from dataclasses import replace
from pathlib import Path

import pytest
from listening import PART, Heard, is_complete
from webserver import (
    HASTE,
    Loopback,
    cifar_batches,
    fetch_patiently,
    honest,
    mnist_files,
    refuses,
    serve_mnist,
    stalls,
    tar_of,
)

from egalitarian.lab.problems.datasets import images as archives
from egalitarian.lab.problems.datasets.files import DataError, Dataset, check_file
from egalitarian.lab.problems.datasets.images import cifar10_test, fetch, mnist

TAR = "/cifar.tar.gz"


def ranges(server: Loopback, path: str = TAR) -> list[str | None]:
    return [asked for where, asked in server.asked if where == path]


def test_mnist_is_fetched_and_read(server: Loopback, tmp_path: Path, heard: Heard) -> None:
    dataset = serve_mnist(server)
    fetch(dataset, tmp_path / "new", heard, HASTE)
    assert is_complete(dataset, tmp_path / "new")
    assert mnist(tmp_path / "new", dataset).test.labels.tolist() == [0, 1, 2, 3]
    assert heard.sizes[-1] == dataset.archives[-1].size
    assert len(server.asked) == 4
    fetch(dataset, tmp_path / "new", heard, HASTE)
    assert len(server.asked) == 4  # what is right is not fetched again


def test_cifar_is_fetched_and_read(server: Loopback, cifar: Dataset, tmp_path: Path, heard: Heard) -> None:
    fetch(cifar, tmp_path, heard, HASTE)
    assert is_complete(cifar, tmp_path)  # so the readme was not unpacked
    assert cifar10_test(tmp_path, cifar).labels.tolist() == [5, 6, 7]


def test_only_what_is_missing_is_fetched(server: Loopback, tmp_path: Path) -> None:
    dataset = serve_mnist(server)
    fetch(dataset, tmp_path, patience=HASTE)
    kept = tmp_path / dataset.files[0].path
    before = kept.stat()  # but for the time of the last read, which a check changes
    (tmp_path / dataset.files[1].path).unlink()
    server.asked.clear()
    fetch(dataset, tmp_path, patience=HASTE)
    assert is_complete(dataset, tmp_path)
    assert len(server.asked) == 1
    after = kept.stat()
    assert (after.st_ino, after.st_mtime_ns, after.st_size) == (before.st_ino, before.st_mtime_ns, before.st_size)


def test_a_corrupt_file_is_kept_beside_and_that_is_said(
    server: Loopback, cifar: Dataset, tmp_path: Path, heard: Heard
) -> None:
    fetch(cifar, tmp_path, patience=HASTE)
    path = tmp_path / cifar.files[2].path
    for number, aside in enumerate(("corrupt", "corrupt-2")):
        path.write_bytes(b"precious %d" % number)
        fetch(cifar, tmp_path, heard, HASTE)
        assert check_file(tmp_path, cifar.files[2]).state == "present"
        assert path.with_name(f"{path.name}.{aside}").read_bytes() == b"precious %d" % number
        assert f"{path} was corrupt; it is now {path.name}.{aside}" in heard


def test_a_corrupt_file_stays_where_it_is_if_no_other_comes(server: Loopback, cifar: Dataset, tmp_path: Path) -> None:
    path = tmp_path / cifar.files[2].path
    path.parent.mkdir()
    path.write_bytes(b"precious")
    server.plan(TAR, refuses(404))
    with pytest.raises(DataError):
        fetch(cifar, tmp_path, patience=HASTE)
    assert path.read_bytes() == b"precious"


def test_an_archive_in_the_folder_is_used_and_left(server: Loopback, cifar: Dataset, tmp_path: Path, heard: Heard) -> None:
    given = tmp_path / "cifar-10-binary.tar.gz"
    given.write_bytes(server.content[TAR])
    fetch(cifar, tmp_path, heard, HASTE)
    assert server.asked == []
    assert given.read_bytes() == server.content[TAR]
    assert all(check_file(tmp_path, file).state == "present" for file in cifar.files)


def test_a_wrong_archive_in_the_folder_is_left_and_not_used(
    server: Loopback, cifar: Dataset, tmp_path: Path, heard: Heard
) -> None:
    given = tmp_path / "cifar-10-binary.tar.gz"
    given.write_bytes(b"mine")
    fetch(cifar, tmp_path, heard, HASTE)
    assert given.read_bytes() == b"mine"
    assert "4 bytes instead of .* this archive is not used, and stays as it is" in heard
    assert all(check_file(tmp_path, file).state == "present" for file in cifar.files)


def with_archive(cifar: Dataset, server: Loopback, members: dict[str, bytes]) -> Dataset:
    """The same data set, said to be in another archive."""
    archive = tar_of(members)
    server.content[TAR] = archive
    made = replace(cifar.archives[0], size=len(archive), sha256=hashlib.sha256(archive).hexdigest())
    return replace(cifar, archives=(made,))


def test_an_archive_with_other_files_places_none(
    server: Loopback, cifar: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[int] = []
    batches = {f"cifar-10-batches-bin/{name}": content for name, content in cifar_batches().items()}
    first = "cifar-10-batches-bin/data_batch_1.bin"
    wrong = {**batches, first: bytes(10_000_000)}
    with monkeypatch.context() as patched:
        patched.setattr(archives, "write", lambda file, block, path: written.append(len(block)))
        with pytest.raises(DataError, match="must be the official file, got other bytes"):
            fetch(with_archive(cifar, server, wrong), tmp_path, patience=HASTE)
    assert sum(written) == cifar.files[0].size + 1  # however much there is
    assert list((tmp_path / "cifar-10-batches-bin").iterdir()) == []
    del batches[first]
    with pytest.raises(DataError, match="an archive without"):
        fetch(with_archive(cifar, server, batches), tmp_path, patience=HASTE)


def test_names_in_an_archive_are_no_paths(server: Loopback, cifar: Dataset, tmp_path: Path) -> None:
    batches = {f"./cifar-10-batches-bin/{name}": content for name, content in cifar_batches().items()}
    evil = {"../evil": b"x", str(tmp_path / "evil"): b"x", "cifar-10-batches-bin/../../evil": b"x"}
    fetch(with_archive(cifar, server, evil | batches), tmp_path / "in", patience=HASTE)
    assert [path.name for path in tmp_path.rglob("*evil*")] == []
    assert is_complete(cifar, tmp_path / "in")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_without_permission(server: Loopback, cifar: Dataset, tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(DataError, match="must be writable, got: Permission denied"):
        fetch(cifar, tmp_path / "new", patience=HASTE)
    tmp_path.chmod(0o700)


def test_a_folder_that_cannot_be_made(server: Loopback, cifar: Dataset, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(DataError, match=r"Not a directory|File exists"):
        fetch(cifar, tmp_path / "file" / "below", patience=HASTE)
    with pytest.raises(DataError, match=r"must be writable, got: .*; free some space or fix the permissions"):
        fetch(cifar, Path("/proc/egalitarian"), patience=HASTE)
    assert server.asked == []


def test_a_folder_with_everything_in_it_is_not_written_to(server: Loopback, cifar: Dataset, tmp_path: Path) -> None:
    fetch(cifar, tmp_path, patience=HASTE)
    (tmp_path / ".fetching").unlink()
    fetch(cifar, tmp_path, patience=HASTE)
    assert not (tmp_path / ".fetching").exists()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk_is_told_at_once(server: Loopback, cifar: Dataset, tmp_path: Path) -> None:
    (tmp_path / PART).symlink_to("/dev/full")
    with pytest.raises(DataError, match=r"\.part must be writable, got: No space left on device; free some space"):
        fetch(cifar, tmp_path, patience=HASTE)
    assert len(server.asked) == 1  # a full disk is no reason to ask another source


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_disk_that_fills_while_unpacking_keeps_the_download(server: Loopback, cifar: Dataset, tmp_path: Path) -> None:
    draft = tmp_path / f"{cifar.files[2].path}.draft"
    draft.parent.mkdir()
    draft.symlink_to("/dev/full")
    with pytest.raises(DataError, match=r"\.draft must be writable, got: No space left on device"):
        fetch(cifar, tmp_path, patience=HASTE)
    assert not list(tmp_path.rglob("*.draft"))
    assert [check_file(tmp_path, file).state for file in cifar.files] == ["present"] * 2 + ["missing"] * 4
    fetch(cifar, tmp_path, patience=HASTE)
    assert len(server.asked) == 1
    assert is_complete(cifar, tmp_path)


@pytest.fixture(scope="module")
def processes() -> multiprocessing.context.ForkServerContext:
    """Forks of a process that has imported torch once."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["egalitarian.lab.problems.datasets.images"])
    return context


def wait_until(path: Path, size: int) -> None:
    deadline = time.monotonic() + 60
    while not path.exists() or path.stat().st_size < size:
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_a_killed_fetch_goes_on(
    server: Loopback, cifar: Dataset, tmp_path: Path, processes: multiprocessing.context.ForkServerContext
) -> None:
    server.plan(TAR, stalls(9000), honest)
    process = processes.Process(target=fetch_patiently, args=(cifar, str(tmp_path)))
    process.start()
    wait_until(tmp_path / PART, 9000)
    assert process.pid is not None
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    assert [check_file(tmp_path, file).state for file in cifar.files] == ["missing"] * 6
    fetch(cifar, tmp_path, patience=HASTE)
    assert ranges(server) == [None, "bytes=9000-"]
    assert is_complete(cifar, tmp_path)


def test_two_processes_fetch_once(
    server: Loopback,
    cifar: Dataset,
    tmp_path: Path,
    heard: Heard,
    processes: multiprocessing.context.ForkServerContext,
) -> None:
    server.plan(TAR, stalls(9000))
    process = processes.Process(target=fetch_patiently, args=(cifar, str(tmp_path)))
    process.start()
    wait_until(tmp_path / PART, 9000)
    heard.note = lambda text: (heard.said.append(text), server.go_on.set())  # type: ignore[method-assign]
    fetch(cifar, tmp_path, heard, HASTE)
    process.join()
    assert process.exitcode == 0
    assert heard.said == [f"Waiting for another process that downloads into {tmp_path}"]
    assert ranges(server) == [None]
    assert is_complete(cifar, tmp_path)


def test_a_part_left_by_a_kill_after_unpacking_goes(server: Loopback, tmp_path: Path) -> None:
    dataset = serve_mnist(server)
    fetch(dataset, tmp_path, patience=HASTE)
    left = tmp_path / f"{dataset.archives[0].path}.part"
    left.write_bytes(b"left")
    (tmp_path / dataset.files[1].path).unlink()
    fetch(dataset, tmp_path, patience=HASTE)
    assert is_complete(dataset, tmp_path)


def test_what_is_no_file_is_not_replaced(server: Loopback, cifar: Dataset, tmp_path: Path) -> None:
    (tmp_path / cifar.files[0].path).mkdir(parents=True)
    with pytest.raises(DataError, match="must be a readable file, got: Is a directory; fix that, or move it away"):
        fetch(cifar, tmp_path, patience=HASTE)
    assert server.asked == []


def test_a_copied_folder_is_enough(server: Loopback, tmp_path: Path) -> None:
    dataset = serve_mnist(server)
    fetch(dataset, tmp_path / "one", patience=HASTE)
    shutil.copytree(tmp_path / "one", tmp_path / "two")
    assert (tmp_path / "two" / dataset.files[0].path).read_bytes() == mnist_files()["train-images-idx3-ubyte"]
    assert len(mnist(tmp_path / "two", dataset).train.labels) == 6
