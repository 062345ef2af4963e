"""Fetching over real HTTP on loopback, from a server that cuts, stalls, corrupts and refuses."""

from __future__ import annotations

import hashlib
import multiprocessing
import os
import re
import shutil
import signal
import socket
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from webserver import (
    HASTE,
    Handler,
    Loopback,
    cifar_batches,
    corrupts,
    cuts,
    fetch_patiently,
    honest,
    longer,
    misplaced,
    mnist_files,
    no_length,
    no_ranges,
    noise,
    refuses,
    serve_cifar,
    serve_mnist,
    stalls,
    tar_of,
)

from egalitarian.lab.problems.datasets import unpack
from egalitarian.lab.problems.datasets.cifar10 import cifar10_test
from egalitarian.lab.problems.datasets.download import Patience
from egalitarian.lab.problems.datasets.fetch import fetch
from egalitarian.lab.problems.datasets.files import DataError, Dataset, inspect
from egalitarian.lab.problems.datasets.mnist import mnist

TAR = "/cifar.tar.gz"
PART = "cifar-10-binary.tar.gz.part"


class Heard:
    """What a fetch said, and how far it said it was."""

    def __init__(self) -> None:
        self.said: list[str] = []
        self.sizes: list[int] = []

    def has(self, name: str, size: int, whole: int) -> None:
        assert 0 < size <= whole
        self.sizes.append(size)

    def says(self, text: str) -> None:
        self.said.append(text)

    def __contains__(self, pattern: str) -> bool:
        return any(re.search(pattern, line) for line in self.said)


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Loopback]:
    monkeypatch.setenv("no_proxy", "*")
    with Loopback() as made:
        yield made


@pytest.fixture
def heard() -> Heard:
    return Heard()


@pytest.fixture
def cifar(server: Loopback) -> Dataset:
    return serve_cifar(server, readme=b"not wanted")


def ranges(server: Loopback, path: str = TAR) -> list[str | None]:
    return [asked for where, asked in server.asked if where == path]


def is_complete(dataset: Dataset, folder: Path) -> bool:
    """All files, and nothing else but the lock."""
    there = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
    right = all(inspect(folder, file).state == "present" for file in dataset.files)
    return right and there == {file.path for file in dataset.files} | {".fetching"}


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
    before = kept.stat()
    (tmp_path / dataset.files[1].path).unlink()
    server.asked.clear()
    fetch(dataset, tmp_path, patience=HASTE)
    assert is_complete(dataset, tmp_path)
    assert len(server.asked) == 1
    assert kept.stat() == before


def test_a_cut_download_goes_on_in_the_middle(server: Loopback, cifar: Dataset, tmp_path: Path, heard: Heard) -> None:
    server.plan(TAR, cuts(5000), cuts(7000), honest)
    fetch(cifar, tmp_path, heard, HASTE)
    assert is_complete(cifar, tmp_path)
    assert ranges(server) == [None, "bytes=5000-", "bytes=12000-"]
    assert heard.sizes == sorted(heard.sizes)
    assert r"the connection ended after 5000 of \d+ bytes" in heard


def test_tries_go_on_as_long_as_they_bring_bytes(server: Loopback, cifar: Dataset, tmp_path: Path) -> None:
    server.plan(TAR, cuts(6000))
    fetch(cifar, tmp_path, patience=Patience(timeout=5, tries=1, pause=0))
    assert len(ranges(server)) == -(-cifar.archives[0].size // 6000)
    assert is_complete(cifar, tmp_path)


def test_a_silent_server_is_given_up_and_its_bytes_are_kept(server: Loopback, cifar: Dataset, tmp_path: Path) -> None:
    server.plan(TAR, stalls(5000), stalls(0))
    with pytest.raises(DataError, match=r"no data for 0\.2 s \(5000 bytes are kept\); run the same command"):
        fetch(cifar, tmp_path, patience=replace(HASTE, timeout=0.2))
    assert (tmp_path / PART).read_bytes() == server.content[TAR][:5000]
    server.plan(TAR, honest)
    fetch(cifar, tmp_path, patience=HASTE)
    assert ranges(server)[-1] == "bytes=5000-"
    assert is_complete(cifar, tmp_path)


def test_a_stall_is_overcome(server: Loopback, cifar: Dataset, tmp_path: Path, heard: Heard) -> None:
    server.plan(TAR, stalls(5000), honest)
    fetch(cifar, tmp_path, heard, replace(HASTE, timeout=0.2))
    assert is_complete(cifar, tmp_path)
    assert "no data" in heard


def test_corrupt_bytes_are_discarded_and_fetched_anew(
    server: Loopback, cifar: Dataset, tmp_path: Path, heard: Heard
) -> None:
    server.plan(TAR, corrupts, honest)
    fetch(cifar, tmp_path, heard, HASTE)
    assert ranges(server) == [None, None]
    assert is_complete(cifar, tmp_path)
    assert "SHA-256 .* instead of .*; the download is discarded" in heard


def test_after_corrupt_bytes_every_byte_is_new(server: Loopback, cifar: Dataset, tmp_path: Path) -> None:
    server.plan(TAR, cuts(9000), corrupts, cuts(6000))
    fetch(cifar, tmp_path, patience=replace(HASTE, tries=2))
    assert is_complete(cifar, tmp_path)


def test_a_corrupting_source_is_tried_twice_and_nothing_is_left(server: Loopback, cifar: Dataset, tmp_path: Path) -> None:
    server.plan(TAR, corrupts)
    with pytest.raises(DataError, match=r"must be downloaded completely, got: .*other bytes"):
        fetch(cifar, tmp_path, patience=Patience(timeout=5, tries=9, pause=0))
    assert len(ranges(server)) == 2
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == [".fetching"]


def test_a_source_that_cuts_and_corrupts_is_given_up(server: Loopback, cifar: Dataset, tmp_path: Path) -> None:
    server.plan(TAR, *[cuts(9000), corrupts] * 50)
    with pytest.raises(DataError, match="other bytes"):
        fetch(cifar, tmp_path, patience=HASTE)
    assert len(ranges(server)) < 10


def test_a_part_of_something_else_is_discarded(server: Loopback, cifar: Dataset, tmp_path: Path, heard: Heard) -> None:
    (tmp_path / PART).write_bytes(noise(3000, seed=5))
    fetch(cifar, tmp_path, heard, HASTE)
    assert ranges(server) == ["bytes=3000-", None]
    assert is_complete(cifar, tmp_path)


@pytest.mark.parametrize("more", [0, 1])
def test_a_whole_part_that_is_wrong_is_discarded(
    more: int, server: Loopback, cifar: Dataset, tmp_path: Path, heard: Heard
) -> None:
    (tmp_path / PART).write_bytes(noise(cifar.archives[0].size + more))
    fetch(cifar, tmp_path, heard, HASTE)
    assert ranges(server) == [None]
    assert f"{PART}: .*; the download is discarded" in heard
    assert is_complete(cifar, tmp_path)


def test_a_whole_part_needs_no_network(server: Loopback, cifar: Dataset, tmp_path: Path) -> None:
    (tmp_path / PART).write_bytes(server.content[TAR])
    fetch(cifar, tmp_path, patience=HASTE)
    assert server.asked == []
    assert is_complete(cifar, tmp_path)


def test_a_server_without_ranges_begins_anew(server: Loopback, cifar: Dataset, tmp_path: Path, heard: Heard) -> None:
    server.plan(TAR, cuts(5000), no_ranges)
    fetch(cifar, tmp_path, heard, HASTE)
    assert "cannot resume; starting from the beginning" in heard
    assert ranges(server) == [None, "bytes=5000-"]
    assert is_complete(cifar, tmp_path)


def test_a_server_need_not_tell_the_length(server: Loopback, cifar: Dataset, tmp_path: Path) -> None:
    server.plan(TAR, no_length)
    fetch(cifar, tmp_path, patience=HASTE)
    assert is_complete(cifar, tmp_path)


def test_bytes_after_the_archive_are_not_taken(server: Loopback, cifar: Dataset, tmp_path: Path) -> None:
    server.plan(TAR, lambda handler, content: no_length(handler, content + b"and more"))
    fetch(cifar, tmp_path, patience=HASTE)
    assert is_complete(cifar, tmp_path)


def test_another_length_is_another_file(server: Loopback, cifar: Dataset, tmp_path: Path) -> None:
    server.plan(TAR, longer)
    with pytest.raises(DataError, match=r"it has \d+ bytes instead of \d+ \(HTTP 200\)"):
        fetch(cifar, tmp_path, patience=HASTE)
    assert len(ranges(server)) == 1


def test_an_answer_from_another_place_is_not_taken(server: Loopback, cifar: Dataset, tmp_path: Path) -> None:
    server.plan(TAR, cuts(5000), misplaced)
    with pytest.raises(DataError, match=r"asked for bytes 5000- of \d+ and answered 'bytes 0-"):
        fetch(cifar, tmp_path, patience=HASTE)
    assert (tmp_path / PART).stat().st_size == 5000


@pytest.mark.parametrize("status", [403, 404, 410])
def test_who_has_it_not_is_asked_once(status: int, server: Loopback, cifar: Dataset, tmp_path: Path) -> None:
    server.plan(TAR, refuses(status))
    with pytest.raises(DataError, match=f"HTTP {status} .*download {server.url(TAR)} elsewhere, put it there"):
        fetch(cifar, tmp_path, patience=HASTE)
    assert len(ranges(server)) == 1


@pytest.mark.parametrize("status", [429, 500, 503])
def test_who_is_busy_is_asked_again(status: int, server: Loopback, cifar: Dataset, tmp_path: Path) -> None:
    server.plan(TAR, refuses(status), refuses(status), honest)
    fetch(cifar, tmp_path, patience=HASTE)
    assert is_complete(cifar, tmp_path)


def test_a_refused_connection_goes_to_the_next_source(server: Loopback, tmp_path: Path, heard: Heard) -> None:
    with socket.socket() as taken:  # bound and not listening: refuses
        taken.bind(("127.0.0.1", 0))
        nowhere = f"http://127.0.0.1:{taken.getsockname()[1]}/"
        dataset = serve_mnist(server)
        archives = tuple(replace(archive, urls=(nowhere, *archive.urls)) for archive in dataset.archives)
        fetch(replace(dataset, archives=archives), tmp_path, heard, HASTE)
        assert "Connection refused" in heard
        assert is_complete(dataset, tmp_path)
        alone = tuple(replace(archive, urls=(nowhere,)) for archive in dataset.archives)
        with pytest.raises(DataError, match="Connection refused"):
            fetch(replace(dataset, archives=alone), tmp_path / "other", heard, HASTE)


def test_a_mirror_goes_on_with_what_another_began(server: Loopback, tmp_path: Path) -> None:
    dataset = serve_mnist(server)
    name = "train-images-idx3-ubyte.gz"
    server.plan(f"/{name}", cuts(1000))
    fetch(dataset, tmp_path, patience=HASTE)
    assert ranges(server, f"/mirror/{name}") == ["bytes=1000-"]
    assert is_complete(dataset, tmp_path)


def test_a_mirror_is_not_blamed_for_what_another_began(server: Loopback, tmp_path: Path, heard: Heard) -> None:
    dataset = serve_mnist(server)
    name = "train-images-idx3-ubyte.gz"

    def lies_and_cuts(handler: Handler, content: bytes) -> None:
        cuts(1000)(handler, bytes(len(content)))

    server.plan(f"/{name}", lies_and_cuts)
    fetch(dataset, tmp_path, heard, HASTE)
    assert ranges(server, f"/mirror/{name}") == ["bytes=1000-", None], "anew, and at once"
    assert is_complete(dataset, tmp_path)


def test_a_corrupt_file_is_kept_beside_and_that_is_said(
    server: Loopback, cifar: Dataset, tmp_path: Path, heard: Heard
) -> None:
    fetch(cifar, tmp_path, patience=HASTE)
    path = tmp_path / cifar.files[2].path
    for number, aside in enumerate(("corrupt", "corrupt-2")):
        path.write_bytes(b"precious %d" % number)
        fetch(cifar, tmp_path, heard, HASTE)
        assert inspect(tmp_path, cifar.files[2]).state == "present"
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
    assert all(inspect(tmp_path, file).state == "present" for file in cifar.files)


def test_a_wrong_archive_in_the_folder_is_left_and_not_used(
    server: Loopback, cifar: Dataset, tmp_path: Path, heard: Heard
) -> None:
    given = tmp_path / "cifar-10-binary.tar.gz"
    given.write_bytes(b"mine")
    fetch(cifar, tmp_path, heard, HASTE)
    assert given.read_bytes() == b"mine"
    assert "4 bytes instead of .* this archive is not used, and stays as it is" in heard
    assert all(inspect(tmp_path, file).state == "present" for file in cifar.files)


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
        patched.setattr(unpack, "write", lambda file, block, path: written.append(len(block)))
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
    assert [inspect(tmp_path, file).state for file in cifar.files] == ["present"] * 2 + ["missing"] * 4
    fetch(cifar, tmp_path, patience=HASTE)
    assert len(server.asked) == 1
    assert is_complete(cifar, tmp_path)


@pytest.fixture(scope="module")
def processes() -> multiprocessing.context.ForkServerContext:
    """Forks of a process that has imported torch once."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["egalitarian.lab.problems.datasets.fetch"])
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
    assert [inspect(tmp_path, file).state for file in cifar.files] == ["missing"] * 6
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
    heard.says = lambda text: (heard.said.append(text), server.go_on.set())  # type: ignore[method-assign]
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
