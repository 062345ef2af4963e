"""`egalitarian explore`: the page's address, and a browser."""

from __future__ import annotations

import threading
import webbrowser
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from egalitarian.lab.console.options import DataOption, DeviceOption, RunsOption, ThreadsOption
from egalitarian.lab.explorer import Defaults, serve
from egalitarian.lab.runs import choose_device


def explore(
    port: Annotated[
        int, typer.Option("--port", metavar="N", min=0, max=65535, help="Port of the page.", show_default="any free one")
    ] = 0,
    no_browser: Annotated[bool, typer.Option("--no-browser", help="Print the address alone.")] = False,
    device: DeviceOption = "auto",
    threads: ThreadsOption = 1,
    runs: RunsOption = Path("runs"),
    data: DataOption = None,
) -> None:
    """Watch networks train on a local page; play with the toy problem.

    Pick an experiment, methods and settings, and start. Pause, stop, compare, and change settings on the way. A second page
    has the toy problem with sliders.

    The page is on this machine alone, and its address has a random token. Ctrl-C closes it and stops what trains; runs are
    stored, as by `egalitarian run`. It needs the extra named explore.
    """
    choose_device(device)
    console = Console(highlight=False)

    def announce(address: str) -> None:
        console.print(f"The page: {address}", soft_wrap=True, markup=False)
        console.print("Ctrl-C closes it.")
        if not no_browser:  # a browser in the terminal would block
            threading.Thread(target=webbrowser.open, args=(address,), daemon=True).start()

    serve(Defaults(runs, device, threads, data), announce, port)
    console.print("Closed. Runs are stored; `egalitarian run` or another start resumes them.")
