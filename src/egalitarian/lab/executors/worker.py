"""A worker process: reads one request as JSON from standard input, carries it out, and exits with its status.

It stops when nobody reads its output any more: a pool that was killed leaves no process behind.
"""

from __future__ import annotations

import dataclasses
import importlib
import json
import os
import select
import signal
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from types import UnionType
from typing import Any, TextIO, Union, get_args, get_origin, get_type_hints

from egalitarian.lab.config import SpecError
from egalitarian.lab.executors.local import BUSY, STOPPED, Executable, Lines
from egalitarian.lab.problems import DataError
from egalitarian.lab.runs import Interrupted, LockedError, StoreError, message_of

KINDS = {
    "train": "egalitarian.lab.runs:Request",
    "tune": "egalitarian.lab.tuning:TuneRequest",
    "shared": "egalitarian.lab.executors:SharedRequest",
}
"""Import paths of the classes of requests. Executors import none of them: tuning imports executors."""
WRITER = "`request_json` writes requests"


def read_request(values: Any) -> Executable:
    """The request that these values describe, `kind` among them. A SpecError names what does not belong to a request."""
    kind = values.get("kind") if isinstance(values, dict) else None
    if not isinstance(kind, str) or kind not in KINDS:
        got = f"the kind {kind!r}" if isinstance(values, dict) else f"{type(values).__name__} without a kind"
        raise SpecError(f"request must be an object of a kind among {', '.join(KINDS)}, got {got}; {WRITER}")
    module, _, name = KINDS[kind].partition(":")
    request: Any = getattr(importlib.import_module(module), name)
    fields = {field.name: field for field in dataclasses.fields(request)}
    values = {key: value for key, value in values.items() if key != "kind"}
    for key in sorted(fields.keys() ^ values.keys()):
        state = "one that lacks it" if key in fields else "one more"
        raise SpecError(f"request must have the fields {', '.join(fields)}, got {state}: {key!r}; {WRITER}")
    hints = get_type_hints(request)
    for key, value in values.items():
        if not _fits(hints[key], value):
            raise SpecError(f"{key} of a request must be {fields[key].type}, got {value!r}; {WRITER}")
    return request.from_json(values)  # type: ignore[no-any-return]


def _fits(hint: Any, value: Any) -> bool:
    """Whether a value of JSON is of this type: paths come as text, tuples as lists."""
    if get_origin(hint) in (Union, UnionType):
        return any(_fits(option, value) for option in get_args(hint))
    if get_origin(hint) is tuple:
        return isinstance(value, list) and all(_fits(get_args(hint)[0], item) for item in value)
    if get_origin(hint) is Mapping:
        return isinstance(value, dict)
    accepted = {Path: (str,), float: (int, float)}.get(hint, (hint,))
    return isinstance(value, accepted) and (hint is bool or not isinstance(value, bool))


def main(file: TextIO | None = None) -> int:
    """Carries out one request and returns the exit status. A user's mistake is a message, not a traceback."""
    try:
        return read_request(_read_json(file or sys.stdin)).carry_out(Lines())
    except Interrupted:
        return STOPPED
    except KeyboardInterrupt:
        print("Stopped at once. The last checkpoint is stored.", file=sys.stderr)
        return STOPPED
    except (StoreError, DataError, ImportError, ValueError, OSError) as error:
        print(f"egalitarian: {message_of(error)}", file=sys.stderr)
        return BUSY if isinstance(error, LockedError) else 2


def _read_json(file: TextIO) -> Any:
    try:
        return json.load(file)
    except (ValueError, RecursionError) as error:
        raise SpecError(f"request must be JSON, got a text that is not: {error}; {WRITER}") from None


def stop_with_reader(output: int) -> None:
    """Stops this process, as Ctrl-C does, once nobody reads from this pipe: the pool that started it was killed."""
    poll = select.poll()
    poll.register(output, 0)  # for errors alone: a pipe has one without a reader, a file never
    while not (found := poll.poll(1000)):
        pass
    if found[0][1] & (select.POLLERR | select.POLLHUP):
        os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    threading.Thread(target=stop_with_reader, args=(sys.stdout.fileno(),), daemon=True).start()
    raise SystemExit(main())
