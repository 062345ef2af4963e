"""`egalitarian data`: what it shows, fetches and ends with."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from webserver import Loopback, cuts, refuses, serve_cifar, serve_mnist

from egalitarian.lab.console.cli import main
from egalitarian.lab.console.data import DownloadBars, fetch_all
from egalitarian.lab.problems import DATASETS

Command = Callable[..., tuple[int, str, str]]


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Loopback]:
    """Serves small data sets in place of the official ones."""
    monkeypatch.setenv("no_proxy", "*")
    with Loopback() as made:
        monkeypatch.setitem(DATASETS, "mnist", serve_mnist(made))
        monkeypatch.setitem(DATASETS, "cifar-10", serve_cifar(made))
        yield made


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("EGALITARIAN_DATA", str(tmp_path))

    def run(*arguments: str) -> tuple[int, str, str]:
        code = main(["data", *arguments])
        printed = capsys.readouterr()
        return code, printed.out, printed.err

    return run


def test_what_is_missing_and_how_to_get_it(data: Command, tmp_path: Path) -> None:
    code, out, err = data()
    assert (code, err) == (0, "")
    assert len(re.findall(r"^ (?:MNIST|CIFAR-10) +\S+ +missing +[\d ]+$", out, re.MULTILINE)) == 10
    assert f"Folder: {tmp_path}" in out
    assert f"egalitarian data --fetch cifar-10 --data {tmp_path}\n" in out
    url = "https://ossci-datasets.s3.amazonaws.com/mnist/t10k-labels-idx1-ubyte.gz"
    assert f"  {url} as {tmp_path}/MNIST/raw/t10k-labels-idx1-ubyte.gz\n" in out
    assert list(tmp_path.iterdir()) == []


def test_fetch_gets_what_is_named(data: Command, server: Loopback, tmp_path: Path) -> None:
    code, out, err = data("--fetch", "mnist", "--data", str(tmp_path / "here"))
    assert (code, err) == (0, "")
    assert len(re.findall("written and checked", out)) == 4
    assert len(re.findall(" present ", out)) == 4
    assert "CIFAR" not in out
    assert (tmp_path / "here/MNIST/raw/t10k-labels-idx1-ubyte").exists()


@pytest.mark.parametrize("words", [["run", "mnist"], ["grok", "mnist"], ["tune", "mnist"]])
def test_training_looks_where_it_is_told_to(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("EGALITARIAN_DATA", str(tmp_path / "elsewhere"))
    assert main([*words, "--data", str(tmp_path / "here"), "--runs", str(tmp_path), "--device", "cpu"]) == 2
    assert f"{tmp_path}/here/MNIST/raw/train-images-idx3-ubyte must exist" in capsys.readouterr().err


def test_fetch_gets_all(data: Command, server: Loopback) -> None:
    assert data("--fetch")[0] == 0
    code, out, _ = data()
    assert code == 0
    assert len(re.findall(" present ", out)) == 10
    assert "--fetch" not in out


def test_a_failed_fetch_is_told_and_the_next_is_made(data: Command, server: Loopback, tmp_path: Path) -> None:
    for place in ("/train-images-idx3-ubyte.gz", "/mirror/train-images-idx3-ubyte.gz"):
        server.plan(place, refuses(404))
    code, out, err = data("--fetch")
    assert code == 1
    assert err.startswith(
        f"egalitarian: {tmp_path}/MNIST/raw/train-images-idx3-ubyte.gz must be downloaded completely, got: "
    )
    assert "HTTP 404" in err
    assert "Traceback" not in out + err
    assert len(re.findall(" present ", out)) == 6


def test_a_corrupt_file_ends_with_1_until_it_is_fetched(data: Command, server: Loopback, tmp_path: Path) -> None:
    data("--fetch")
    path = tmp_path / "cifar-10-batches-bin/test_batch.bin"
    path.write_bytes(b"mine")
    code, out, _ = data()
    assert code == 1
    assert len(re.findall(" corrupt ", out)) == 1
    assert f"{path}: 4 bytes instead of 9219" in out
    assert path.read_bytes() == b"mine"
    code, out, _ = data("--fetch")
    assert code == 0
    assert "it is now test_batch.bin.corrupt" in out
    assert path.with_name("test_batch.bin.corrupt").read_bytes() == b"mine"


def test_ctrl_c_keeps_what_has_come(
    data: Command, server: Loopback, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*arguments: object) -> None:
        raise KeyboardInterrupt

    server.plan("/cifar.tar.gz", cuts(4000))
    with monkeypatch.context() as patched:
        patched.setattr(DownloadBars, "progress", interrupted)
        code, _, err = data("--fetch", "cifar-10")
    assert code == 130
    assert "What was downloaded is kept; run the same command again to resume." in err
    assert (tmp_path / "cifar-10-binary.tar.gz.part").stat().st_size == 4000
    assert data("--fetch", "cifar-10")[0] == 0


def test_mistakes_are_messages(data: Command, tmp_path: Path) -> None:
    code, _, err = data("minst")
    assert code == 2
    assert "data set must be one of mnist, cifar-10, got 'minst'; did you mean 'mnist'?" in err
    (tmp_path / "file").touch()
    code, _, err = data("--data", str(tmp_path / "file"))
    assert code == 2
    assert "--data must be a folder, got the file" in err


def test_a_terminal_has_a_bar(server: Loopback, tmp_path: Path) -> None:
    from rich.console import Console

    console = Console(force_terminal=True, width=100, record=True, file=(tmp_path / "screen").open("w"))
    with console.file:
        assert fetch_all(console, [DATASETS["cifar-10"]], tmp_path)
    shown = (tmp_path / "screen").read_text()
    assert "cifar-10-binary.tar.gz" in shown
    assert "━" in shown
