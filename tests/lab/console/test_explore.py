"""`egalitarian explore` up to the point where a browser takes over: tests/browser has the rest."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import pytest

from egalitarian.lab.config import SpecError
from egalitarian.lab.console import explore as command
from egalitarian.lab.console import main
from egalitarian.lab.explorer import Defaults
from egalitarian.lab.explorer.server import bound


def test_without_nicegui_the_error_has_the_pip_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "nicegui", None)
    assert main(["explore", "--no-browser"]) == 2
    assert "needs the nicegui package; pip install 'egalitarian[explore]'" in capsys.readouterr().err


def test_a_device_that_is_not_there_is_an_error_before_the_page(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explore", "--device", "tpu"]) == 2
    assert "--device must be" in capsys.readouterr().err


def test_a_taken_port_is_an_error() -> None:
    with bound(0) as first:
        host, port = first.getsockname()
        assert host == "127.0.0.1"
        with pytest.raises(SpecError, match=f"--port must be free on this machine, got {port}: .*leave it out"):
            bound(port)


@pytest.mark.parametrize("quiet", [True, False])
def test_the_address_is_printed_and_opened_unless_told_not_to(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path, quiet: bool
) -> None:
    opened: list[str] = []
    given: list[Any] = []

    def serve(defaults: Defaults, announce: Any, port: int) -> None:
        given.extend([defaults, port])
        announce("http://127.0.0.1:8123/token[x]/")

    monkeypatch.setattr(command, "serve", serve)
    monkeypatch.setattr(command.webbrowser, "open", opened.append)
    arguments = ["--runs", str(tmp_path), "--port", "8123", "--device", "cpu", "--threads", "2"]
    assert main(["explore", *arguments, *(["--no-browser"] if quiet else [])]) == 0
    assert given == [Defaults(tmp_path, "cpu", 2, None), 8123]
    assert "The page: http://127.0.0.1:8123/token[x]/\n" in capsys.readouterr().out
    deadline = time.monotonic() + (0 if quiet else 10)
    while not opened and time.monotonic() < deadline:  # it is opened by a thread
        time.sleep(0.01)
    assert opened == ([] if quiet else ["http://127.0.0.1:8123/token[x]/"])
