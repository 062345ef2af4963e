"""Ray: `--on ray` starts one on this machine, `--on ray:ADDRESS` joins one that runs."""

from __future__ import annotations

import queue
import socket
import threading
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from rich.console import Console

from egalitarian.lab.config import SpecError
from egalitarian.lab.executors.cluster import APART, LOST, Cluster
from egalitarian.lab.executors.local import STOPPED, Executable, Handle, search_path, start_worker

PATIENCE = 10.0
"""Seconds until an address that does not answer is an error."""
ASK_EVERY = 1.0
"""Seconds of silence after which a task asks whether it shall stop."""


def carry_out_on_node(text: str, others: int, stops: str) -> Iterator[str | int]:
    """Runs a worker on the node that Ray has chosen. Yields a first empty line, its lines, then its exit status."""
    yield ""
    process = start_worker(text, others)
    said: queue.SimpleQueue[str | None] = queue.SimpleQueue()

    def read() -> None:
        assert process.stdout is not None
        with process.stdout:
            for line in process.stdout:
                said.put(line)
        said.put(None)

    threading.Thread(target=read, daemon=True).start()
    passed_on = 0
    while True:
        try:
            line = said.get(timeout=ASK_EVERY)
        except queue.Empty:
            if (asked := _asked(stops)) > passed_on:
                process.terminate()
                passed_on = asked
            continue
        if line is None:
            yield process.wait()
            return
        yield line


def _asked(stops: str) -> int:
    """How often the command was asked to stop. A file that is opened is read afresh, on a network's file system, too."""
    try:
        return len(Path(stops).read_bytes())
    except OSError:  # no shared folder, which the worker says; or the command is gone, and Ray ends this process
        return 0


class RayTask:
    """A request that Ray carries out."""

    def __init__(self, ray: Any, stream: Any) -> None:
        self._ray, self._stream = ray, stream
        self._status = LOST
        self._begun, self._ended = False, threading.Event()
        self.stdout = self._lines()

    def _lines(self) -> Generator[str]:
        errors = self._ray.exceptions
        try:
            for reference in self._stream:
                said = self._ray.get(reference)
                self._begun = True
                if isinstance(said, int):
                    self._status = said
                else:
                    yield said
        except errors.TaskCancelledError:
            self._status = STOPPED
        except (errors.RaySystemError, errors.RayTaskError) as error:
            self._status = APART
            yield f"egalitarian: its lab must be installed on every machine, got {_last_line(error)}; install it there"
        except errors.RayError as error:
            yield f"{type(error).__name__}: {str(error).splitlines()[0]}"
        finally:
            self._ended.set()

    def wait(self) -> int:
        self._ended.wait()
        return self._status

    def terminate(self) -> None:
        """One that has begun asks for stops itself: Ray would end it before its worker has stored anything."""
        if not self._begun:
            self._ray.cancel(self._stream)


class Ray(Cluster):
    """The executor on a Ray cluster, `most` requests at a time; without an address, on one that it starts here."""

    where = "Ray"

    def __init__(
        self,
        console: Console,
        requests: Sequence[Executable],
        most: int,
        runs: Path,
        address: str | None,
        gpu: bool,
        cpus: int,
    ) -> None:
        super().__init__(console, requests, most, runs)
        self._ray = _imported()
        self._address, self._gpu, self._cpus = address, gpu, cpus
        self._stops = self._folder / "stops"
        """A byte for each time that the tasks shall stop. A request to Ray would release a task's CPU to others."""

    @staticmethod
    def check(address: str | None) -> None:
        """An ImportError without Ray. A SpecError where nothing answers: Ray would wait a minute, and end this process."""
        _imported()
        if address is not None:
            _check_address(address)

    @contextmanager
    def _connected(self) -> Iterator[None]:
        quiet = {"log_to_driver": False, "logging_level": "error", "configure_logging": False}
        if self._address is None:
            self._ray.init("local", include_dashboard=False, num_cpus=self._most * self._cpus, **quiet)
        else:
            try:
                self._ray.init(self._address, **quiet)
            except (ConnectionError, RuntimeError, ValueError, self._ray.exceptions.RayError) as error:
                raise SpecError(
                    f"--on ray:ADDRESS must be a cluster that this machine may join, got {self._address} and: "
                    f"{_last_line(error)}; run `ray start --address={self._address}` here first, and if it has a token, "
                    f"set RAY_AUTH_MODE=token"
                ) from error
        try:
            options = {"num_cpus": self._cpus, "num_gpus": int(self._gpu), "runtime_env": {"env_vars": search_path()}}
            # max_retries: `Cluster` requests a lost task again, and says so
            self._remote = self._ray.remote(max_retries=0, num_returns="streaming", **options)(carry_out_on_node)
            self._stops.touch()
            yield
        finally:
            self._ray.shutdown()

    def _start(self, request: Executable) -> Handle:
        return RayTask(self._ray, self._remote.remote(self._text(request), self._others, str(self._stops)))

    def _stop(self) -> None:
        if self._running:
            with self._stops.open("ab") as file, suppress(OSError):  # on a full disk, the end of this process stops them
                file.write(b"!")
        super()._stop()


def _imported() -> Any:
    """Ray itself."""
    try:
        import ray
    except ImportError:
        raise ImportError("--on ray needs the ray package; pip install 'egalitarian[ray]'") from None
    return ray


def _check_address(address: str) -> None:
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal():
        raise SpecError(
            f"--on ray:ADDRESS must be a host and a port, got {address!r}; `ray start --head` prints it, as 10.0.0.1:6379"
        )
    try:
        socket.create_connection((host, int(port)), PATIENCE).close()
    except (OSError, OverflowError) as error:
        raise SpecError(
            f"--on ray:ADDRESS must be the address of a running cluster, got {address} and: {error}; `ray start --head` "
            f"starts one and prints its address"
        ) from error


def _last_line(error: Exception) -> str:
    return next((line.strip() for line in reversed(str(error).splitlines()) if line.strip()), type(error).__name__)
