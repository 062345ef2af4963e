"""The explorer's server: on this machine alone, behind a token, until Ctrl-C."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import socket
import warnings
from collections.abc import Callable
from typing import Any

from egalitarian.lab.config import SpecError
from egalitarian.lab.explorer.guard import Guard
from egalitarian.lab.explorer.session import WatchedRuns
from egalitarian.lab.explorer.watched import Defaults

HOST = "127.0.0.1"


def serve(defaults: Defaults, announce: Callable[[str], None], port: int = 0) -> None:
    """Serves the page until Ctrl-C or SIGTERM, then stops all trainers. `announce` gets the address.

    Port 0 takes any free one.
    """
    try:
        import uvicorn
        from fastapi import FastAPI
        from nicegui import app, ui
    except ImportError:
        raise ImportError("the explorer needs the nicegui package; pip install 'egalitarian[explore]'") from None

    from egalitarian.lab.explorer.pages.parts import add_looks
    from egalitarian.lab.explorer.pages.sliders import ToyPage
    from egalitarian.lab.explorer.pages.train import TrainPage

    session, token = WatchedRuns(), secrets.token_urlsafe(24)
    listening = bound(port)
    address = f"http://{HOST}:{listening.getsockname()[1]}/{token}/"

    def show_training() -> None:
        TrainPage(session, defaults)

    # a second Ctrl-C cancels requests, which is no error
    logging.getLogger("uvicorn.error").addFilter(lambda record: not _is_cancelled(record))
    # at its start NiceGUI looks at every object of the process, also at deprecated ones of torch
    warnings.filterwarnings("ignore", category=FutureWarning, module=r"nicegui\.")
    add_looks()
    ui.page("/", title="egalitarian explore")(show_training)
    ui.page("/toy", title="Toy problem, egalitarian explore")(ToyPage)
    app.on_startup(lambda: announce(address))
    app.on_shutdown(session.close)
    outer: Any = FastAPI(openapi_url=None)
    ui.run_with(
        outer,
        mount_path=f"/{token}",
        dark=None,  # as the system has it
        language="en-US",
        tailwind=False,
        gzip_middleware_factory=None,
        message_history_length=0,
        binding_refresh_interval=None,
        show_welcome_message=False,
    )
    guarded: Any = Guard(outer, token, listening.getsockname()[1])
    config = uvicorn.Config(
        guarded, ws="wsproto", log_level="warning", access_log=False, timeout_graceful_shutdown=1, server_header=False
    )
    try:
        with contextlib.suppress(KeyboardInterrupt):
            uvicorn.Server(config).run(sockets=[listening])
    finally:
        session.close()
        listening.close()


def _is_cancelled(record: logging.LogRecord) -> bool:
    error = record.exc_info[1] if record.exc_info else None
    return isinstance(error, asyncio.CancelledError) or "CancelledError" in record.getMessage()


def bound(port: int) -> socket.socket:
    """A socket that listens on this machine alone."""
    listening = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((HOST, port))
    except (OSError, OverflowError) as error:
        listening.close()
        reason = getattr(error, "strerror", None) or str(error)
        raise SpecError(f"--port must be free on this machine, got {port}: {reason}; leave it out to take any") from None
    listening.listen()
    return listening
