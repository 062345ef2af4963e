"""`python -m egalitarian` and the console script: runs the lab, or prints how to install it."""

from __future__ import annotations

import atexit
import importlib.util
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import egalitarian

LAB_REQUIRES = ("numpy", "scipy", "pandas", "matplotlib", "typer", "rich", "jinja2", "safetensors", "filelock")
STOPPED = "Stopped."
USAGE = """\
usage: egalitarian [--version | --help]

egalitarian {version}: egalitarian gradient descent for PyTorch. The library is used from Python:

    import egalitarian as eg
    egd = eg.attach(optimizer, model)

The lab's commands (grok, list, show, run, explore, report, check, toy, bench, tune, data) need {missing}:
    pip install 'egalitarian[lab]'    (in a checkout: pip install '.[lab]')
"""


@contextmanager
def _ending_at_ctrl_c() -> Iterator[None]:
    """Ctrl-C ends the process at once. Modules that are being imported may turn a KeyboardInterrupt into another error."""
    before = signal.getsignal(signal.SIGINT)
    if before is not signal.default_int_handler or threading.current_thread() is not threading.main_thread():
        yield
        return
    signal.signal(signal.SIGINT, _end)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _end(number: int, frame: object) -> None:
    print(STOPPED, file=sys.stderr, flush=True)
    os._exit(130)


def main(arguments: list[str] | None = None) -> int:
    arguments = sys.argv[1:] if arguments is None else arguments
    try:
        missing = [name for name in LAB_REQUIRES if importlib.util.find_spec(name) is None]
        if not missing:
            with _ending_at_ctrl_c():
                from egalitarian.lab.console import main as lab
            return lab(arguments)
    except KeyboardInterrupt:
        print(STOPPED, file=sys.stderr)
        return 130
    finally:  # a second Ctrl-C would interrupt Python's end, which prints a traceback; what is registered last runs first
        atexit.register(signal.signal, signal.SIGINT, signal.SIG_IGN)
    if arguments == ["--version"]:
        print(f"egalitarian {egalitarian.__version__}")
        return 0
    asked_for_help = arguments in ([], ["-h"], ["--help"])
    print(
        USAGE.format(version=egalitarian.__version__, missing=", ".join(missing)),
        file=sys.stdout if asked_for_help else sys.stderr,
    )
    return 0 if asked_for_help else 2


if __name__ == "__main__":
    raise SystemExit(main())
