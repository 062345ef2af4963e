"""A worker process: reads one request as JSON from standard input, carries it out, and exits with its status.

It stops when nobody reads its output any more: a pool that was killed leaves no process behind.
"""

from __future__ import annotations

import importlib
import json
import os
import select
import signal
import sys
import threading
from typing import Any

from egalitarian.lab.executors.local import STOPPED, Executable, Lines
from egalitarian.lab.problems import DataError
from egalitarian.lab.runs import Interrupted, StoreError

KINDS = {"train": "egalitarian.lab.runs:Request", "tune": "egalitarian.lab.tuning:TuneRequest"}
"""Import paths of the classes of requests. Executors import none of them: tuning imports executors."""


def read_request(values: dict[str, Any]) -> Executable:
    """The request that these values describe, `kind` among them."""
    kind = values.pop("kind")
    module, _, name = KINDS[kind].partition(":")
    request: type[Executable] = getattr(importlib.import_module(module), name)
    return request.from_json(values)


def main() -> int:
    """Carries out one request and returns the exit status. A user's mistake is a message, not a traceback."""
    try:
        return read_request(json.load(sys.stdin)).carry_out(Lines())
    except Interrupted:
        return STOPPED
    except KeyboardInterrupt:
        print("Stopped at once. The last checkpoint is stored.", file=sys.stderr)
        return STOPPED
    except (StoreError, DataError, ImportError, ValueError, OSError) as error:
        print(f"egalitarian: {error}", file=sys.stderr)
        return 2


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
