"""One archive over real HTTP on loopback, from a server that cuts, stalls, corrupts and refuses."""

from __future__ import annotations

import socket
from dataclasses import replace
from pathlib import Path

import pytest
from listening import PART, Heard, is_complete
from webserver import (
    HASTE,
    Handler,
    Loopback,
    corrupts,
    cuts,
    honest,
    longer,
    misplaced,
    no_length,
    no_ranges,
    noise,
    refuses,
    serve_mnist,
    stalls,
)

from egalitarian.lab.problems.datasets.download import Patience
from egalitarian.lab.problems.datasets.files import DataError, Dataset
from egalitarian.lab.problems.datasets.images import fetch

TAR = "/cifar.tar.gz"


def ranges(server: Loopback, path: str = TAR) -> list[str | None]:
    return [asked for where, asked in server.asked if where == path]


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
