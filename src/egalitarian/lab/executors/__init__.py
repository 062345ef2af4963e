"""Executors carry out requests, a process each: `Pool` on this machine, several concurrently. `Executor` is their protocol.

A request is a frozen dataclass, as `Executable` describes. An executor starts `WORKER` with `request_json(request)` as
standard input. The worker finds the request's class in `worker.KINDS`, by an import path, and calls its `carry_out`. It
reports progress through `Lines`, a `runs.Listener`: `lines.status(text)` prints at most one line every few seconds.
"""

from egalitarian.lab.executors.local import (
    STOPPED,
    TIME_OVER,
    WORKER,
    Executable,
    Executor,
    Lines,
    Pool,
    process_environment,
    request_json,
)

__all__ = [
    "STOPPED",
    "TIME_OVER",
    "WORKER",
    "Executable",
    "Executor",
    "Lines",
    "Pool",
    "process_environment",
    "request_json",
]
