"""One archive over HTTP, into a `.part` file that is gone on with after a break, from one source after the other.

A source that is refused, cut or silent has its turn again, as long as turns bring bytes. One that has no such file or
announces another size has not, nor has one that twice brought other bytes than the official ones. Where some of these had
come before its turn, they may be another's fault: it begins anew at once, and is not blamed.
"""

from __future__ import annotations

import re
import time
import urllib.request
from collections import Counter, deque
from dataclasses import dataclass, replace
from http.client import HTTPException, HTTPResponse
from pathlib import Path
from typing import Protocol
from urllib.error import HTTPError, URLError

from egalitarian import __version__
from egalitarian.lab.problems.datasets.files import Archive, DataError, inspect, write, writing

AT_ONCE = 1 << 18
"""Bytes read at most before they are written and shown."""
COME_AGAIN = (408, 425, 429)
"""Refusals of the request that are not for good."""


@dataclass(frozen=True)
class Patience:
    """How long to wait for whom."""

    timeout: float = 30.0
    """Seconds for an answer, and for each next byte."""
    tries: int = 4
    """How many in a row may bring nothing new."""
    pause: float = 1.0
    """Seconds before a source is asked again, times how many there were."""


class Listener(Protocol):
    """Who is told how a fetch goes."""

    def has(self, name: str, size: int, whole: int) -> None: ...
    def says(self, text: str) -> None: ...


class Silent:
    """Nobody."""

    def has(self, name: str, size: int, whole: int) -> None: ...
    def says(self, text: str) -> None: ...


class _TurnError(Exception):
    """A turn of a source that did not end with the whole archive."""

    def __init__(self, reason: str, *, final: bool = False, wrong: bool = False, alone: bool = True) -> None:
        super().__init__(reason)
        self.final, self.wrong, self.alone = final, wrong, alone


def part_of(archive: Archive) -> Archive:
    """The archive while it comes."""
    return replace(archive, path=f"{archive.path}.part")


def download(folder: Path, archive: Archive, listener: Listener, patience: Patience) -> Path:
    """The whole archive, checked; what had come of it before is gone on with."""
    part = part_of(archive)
    path = folder / part.path
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
    if _size(path) >= archive.size:
        wrong = _wrong(folder, part)
        if not wrong:
            return path
        listener.says(f"{path}: {wrong}")
    sources, failures, doubts = deque(archive.urls), dict[str, str](), Counter[str]()
    best, idle, mixtures = _size(path), 0, len(archive.urls)
    while sources and idle < patience.tries:
        url = sources.popleft()
        if url in failures:
            time.sleep(patience.pause * idle)
        try:
            _turn(url, folder, part, listener, patience.timeout)
            return path
        except _TurnError as failure:
            failures[url] = str(failure)
            listener.says(f"{url}: {failure}")
            if failure.wrong and not failure.alone and mixtures:
                mixtures -= 1
                sources.appendleft(url)
            else:
                doubts[url] += failure.wrong
                if not failure.final and doubts[url] < 2:
                    sources.append(url)
            best = 0 if failure.wrong else best
            best, idle = max(best, _size(path)), 0 if _size(path) > best else idle + 1
    raise DataError(_gave_up(folder, archive, failures))


def _turn(url: str, folder: Path, part: Archive, listener: Listener, timeout: float) -> None:
    path = folder / part.path
    try:
        began = _go_on(url, path, part, listener, timeout)
    except HTTPError as error:
        error.close()
        final = 400 <= error.code < 500 and error.code not in COME_AGAIN
        raise _TurnError(f"HTTP {error.code} {error.reason}", final=final) from error
    except TimeoutError as error:
        raise _TurnError(f"no data for {timeout:g} s") from error
    except (OSError, HTTPException) as error:
        reason = error.reason if isinstance(error, URLError) else error
        raise _TurnError(str(reason) or type(reason).__name__) from error
    if _size(path) < part.size:
        raise _TurnError(f"the connection ended after {_size(path)} of {part.size} bytes")
    wrong = _wrong(folder, part)
    if wrong:
        raise _TurnError(wrong, wrong=True, alone=not began)


def _go_on(url: str, path: Path, part: Archive, listener: Listener, timeout: float) -> int:
    """The byte that the answer began with."""
    have = _size(path)
    headers = {"User-Agent": f"egalitarian/{__version__}"} | ({"Range": f"bytes={have}-"} if have else {})
    listener.says(f"Resuming {url} at byte {have} of {part.size}" if have else f"Downloading {url}, {part.size} bytes")
    with urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=timeout) as response:
        size = began = _start(response, have, part)
        if size < have:
            listener.says(f"{url} cannot resume; starting from the beginning")
        with writing(path):
            file = path.open("ab", buffering=0)
        with file:
            if size < have:
                file.truncate(size)
            while size < part.size and (block := response.read1(min(AT_ONCE, part.size - size))):
                write(file, block, path)
                size += len(block)
                listener.has(path.stem, size, part.size)
    return began


def _start(response: HTTPResponse, have: int, part: Archive) -> int:
    """The byte that the answer begins with; an answer that is not about the archive has failed."""
    if response.status == 206:
        told = response.headers.get("Content-Range", "")
        match = re.fullmatch(r"bytes (\d+)-\d+/(\d+|\*)", told)
        if match is None or int(match[1]) != have or match[2] not in ("*", str(part.size)):
            raise _TurnError(f"it was asked for bytes {have}- of {part.size} and answered {told!r}", final=True)
        return have
    length = response.headers.get("Content-Length")
    if response.status != 200 or length not in (None, str(part.size)):
        raise _TurnError(f"it has {length} bytes instead of {part.size} (HTTP {response.status})", final=True)
    return 0


def _wrong(folder: Path, part: Archive) -> str:
    """What is wrong with a part that has all its bytes; then it is discarded."""
    verdict = inspect(folder, part)
    if verdict.state == "present":
        return ""
    with writing(verdict.path):
        verdict.path.unlink()
    return f"{verdict.reason}; the download is discarded"


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _gave_up(folder: Path, archive: Archive, failures: dict[str, str]) -> str:
    told = "; ".join(f"{url}: {reason}" for url, reason in failures.items())
    come = _size(folder / part_of(archive).path)
    kept = f" ({come} bytes are kept)" if come else ""
    return (
        f"{folder / archive.path} must be downloaded completely, got: {told}{kept}; run the same command to try again, or "
        f"download {archive.urls[0]} elsewhere, put it there and run the same command"
    )
