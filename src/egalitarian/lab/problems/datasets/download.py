"""Downloads one archive over HTTP into a `.part` file, resumes after a break, and tries one source after the other.

A source that refuses, breaks off or is silent is retried as long as attempts bring new bytes. A source without the file, or
with another size, is given up at once, and one that twice delivered wrong bytes is, too. If an attempt resumed bytes of an
earlier one, these may be the wrong ones: the source then starts from the beginning, and the failure does not count.
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
from egalitarian.lab.problems.datasets.files import Archive, DataError, check_file, write, writing

BLOCK = 1 << 18
"""Bytes read at most before they are written and reported."""
RETRY = (408, 425, 429)
"""HTTP client errors that may pass."""


@dataclass(frozen=True)
class Patience:
    """Timeouts and retries."""

    timeout: float = 30.0
    """Seconds without an answer or a further byte."""
    tries: int = 4
    """Attempts in a row that may bring no new bytes."""
    pause: float = 1.0
    """Seconds before a retry, times the attempts in a row that brought nothing."""


class FetchListener(Protocol):
    """Receives the progress of a fetch: bytes of an archive so far and in all, and notes in plain text."""

    def progress(self, name: str, size: int, whole: int) -> None: ...
    def note(self, text: str) -> None: ...


class SilentFetch:
    """A listener that ignores everything."""

    def progress(self, name: str, size: int, whole: int) -> None: ...
    def note(self, text: str) -> None: ...


class _AttemptError(Exception):
    """An attempt that did not end with the whole archive.

    `final`: another attempt at this source is pointless. `wrong`: the bytes are not the official ones. `alone`: all of them
    came in this attempt.
    """

    def __init__(self, reason: str, *, final: bool = False, wrong: bool = False, alone: bool = True) -> None:
        super().__init__(reason)
        self.final, self.wrong, self.alone = final, wrong, alone


def part_of(archive: Archive) -> Archive:
    """The archive while it is being downloaded."""
    return replace(archive, path=f"{archive.path}.part")


def download(folder: Path, archive: Archive, listener: FetchListener, patience: Patience) -> Path:
    """The path of the whole archive, checked. An earlier partial download is resumed."""
    part = part_of(archive)
    path = folder / part.path
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
    if _size(path) >= archive.size:
        wrong = _discard_wrong(folder, part)
        if not wrong:
            return path
        listener.note(f"{path}: {wrong}")
    sources, failures = deque(archive.urls), dict[str, str]()
    doubts = Counter[str]()  # by source: how often all bytes were its own, and wrong
    mixtures = len(archive.urls)  # how often wrong bytes of several attempts are forgiven
    best, idle = _size(path), 0
    while sources and idle < patience.tries:
        url = sources.popleft()
        if url in failures:
            time.sleep(patience.pause * idle)
        try:
            _attempt(url, folder, part, listener, patience.timeout)
            return path
        except _AttemptError as failure:
            failures[url] = str(failure)
            listener.note(f"{url}: {failure}")
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


def _attempt(url: str, folder: Path, part: Archive, listener: FetchListener, timeout: float) -> None:
    path = folder / part.path
    try:
        began = _receive(url, path, part, listener, timeout)
    except HTTPError as error:
        error.close()
        final = 400 <= error.code < 500 and error.code not in RETRY
        raise _AttemptError(f"HTTP {error.code} {error.reason}", final=final) from error
    except TimeoutError as error:
        raise _AttemptError(f"no data for {timeout:g} s") from error
    except (OSError, HTTPException) as error:
        reason = error.reason if isinstance(error, URLError) else error
        raise _AttemptError(str(reason) or type(reason).__name__) from error
    if _size(path) < part.size:
        raise _AttemptError(f"the connection ended after {_size(path)} of {part.size} bytes")
    wrong = _discard_wrong(folder, part)
    if wrong:
        raise _AttemptError(wrong, wrong=True, alone=not began)


def _receive(url: str, path: Path, part: Archive, listener: FetchListener, timeout: float) -> int:
    """Appends the answer's bytes to the file, and returns the offset at which they began."""
    have = _size(path)
    headers = {"User-Agent": f"egalitarian/{__version__}"} | ({"Range": f"bytes={have}-"} if have else {})
    listener.note(f"Resuming {url} at byte {have} of {part.size}" if have else f"Downloading {url}, {part.size} bytes")
    with urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=timeout) as response:
        size = began = _start(response, have, part)
        if size < have:
            listener.note(f"{url} cannot resume; starting from the beginning")
        with writing(path):
            file = path.open("ab", buffering=0)
        with file:
            if size < have:
                file.truncate(size)
            while size < part.size and (block := response.read1(min(BLOCK, part.size - size))):
                write(file, block, path)
                size += len(block)
                listener.progress(path.stem, size, part.size)
    return began


def _start(response: HTTPResponse, have: int, part: Archive) -> int:
    """The offset at which the answer begins; an error if it is not about this archive."""
    if response.status == 206:
        range_ = response.headers.get("Content-Range", "")
        match = re.fullmatch(r"bytes (\d+)-\d+/(\d+|\*)", range_)
        if match is None or int(match[1]) != have or match[2] not in ("*", str(part.size)):
            raise _AttemptError(f"it was asked for bytes {have}- of {part.size} and answered {range_!r}", final=True)
        return have
    length = response.headers.get("Content-Length")
    if response.status != 200 or length not in (None, str(part.size)):
        raise _AttemptError(f"it has {length} bytes instead of {part.size} (HTTP {response.status})", final=True)
    return 0


def _discard_wrong(folder: Path, part: Archive) -> str:
    """How a complete part differs from the official file, after discarding it; empty if it does not."""
    check = check_file(folder, part)
    if check.state == "present":
        return ""
    with writing(check.path):
        check.path.unlink()
    return f"{check.reason}; the download is discarded"


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _gave_up(folder: Path, archive: Archive, failures: dict[str, str]) -> str:
    reasons = "; ".join(f"{url}: {reason}" for url, reason in failures.items())
    received = _size(folder / part_of(archive).path)
    kept = f" ({received} bytes are kept)" if received else ""
    return (
        f"{folder / archive.path} must be downloaded completely, got: {reasons}{kept}; run the same command to try again, "
        f"or download {archive.urls[0]} elsewhere, put it there and run the same command"
    )
