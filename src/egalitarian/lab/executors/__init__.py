"""Executors carry out requests: `Pool` starts a process of this machine for each, several concurrently.

A request is a frozen dataclass with `kind`, `name`, `to_json`, `from_json` and `carry_out`, as `Executable` describes. The
pool writes it as JSON to the standard input of a worker. The worker finds its class in `worker.KINDS`, by an import path.
`Lines` reports progress: it is a `runs.Listener`, and `lines.status(text)` prints at most one line every few seconds.
"""

from egalitarian.lab.executors.local import (
    STOPPED,
    TIME_OVER,
    Executable,
    Lines,
    Pool,
    condition,
    counted,
    ending,
    label,
    measures,
    median,
)

__all__ = [
    "STOPPED",
    "TIME_OVER",
    "Executable",
    "Lines",
    "Pool",
    "condition",
    "counted",
    "ending",
    "label",
    "measures",
    "median",
]
