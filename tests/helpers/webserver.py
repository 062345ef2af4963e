"""A real HTTP server on loopback that may misbehave, and small data sets in the official formats for it to serve."""

from __future__ import annotations

import gzip
import hashlib
import io
import random
import re
import struct
import tarfile
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import Self

from egalitarian.lab.problems.datasets.download import Patience
from egalitarian.lab.problems.datasets.files import Archive, DataFile, Dataset
from egalitarian.lab.problems.datasets.images import fetch

Behaviour = Callable[["Handler", bytes], None]
HASTE = Patience(timeout=20, tries=3, pause=0.0)


class Handler(BaseHTTPRequestHandler):
    server: Loopback

    def do_GET(self) -> None:
        asked = self.headers.get("Range")
        self.server.asked.append((self.path, asked))
        if self.path not in self.server.content:
            return refuses(404)(self, b"")
        planned = self.server.plans.get(self.path, [])
        behave = honest if not planned else planned.pop(0) if len(planned) > 1 else planned[0]
        return behave(self, self.server.content[self.path])

    def head(self, status: int, **headers: object) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), str(value))
        self.end_headers()

    def begin(self, content: bytes) -> bytes:
        """Sends the headers for what was asked, and returns that."""
        match = re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range", ""))
        start = int(match[1]) if match else 0
        rest = content[start:]
        if match:
            self.head(206, Content_Length=len(rest), Content_Range=f"bytes {start}-{len(content) - 1}/{len(content)}")
        else:
            self.head(200, Content_Length=len(rest))
        return rest

    def log_message(self, format: str, *arguments: object) -> None: ...


def honest(handler: Handler, content: bytes) -> None:
    handler.wfile.write(handler.begin(content))


def no_ranges(handler: Handler, content: bytes) -> None:
    handler.head(200, Content_Length=len(content))
    handler.wfile.write(content)


def no_length(handler: Handler, content: bytes) -> None:
    handler.head(200)
    handler.wfile.write(content)


def corrupts(handler: Handler, content: bytes) -> None:
    honest(handler, content[:-5] + bytes([content[-5] ^ 1]) + content[-4:])


def longer(handler: Handler, content: bytes) -> None:
    honest(handler, content + b"?")


def misplaced(handler: Handler, content: bytes) -> None:
    handler.head(206, Content_Length=len(content), Content_Range=f"bytes 0-{len(content) - 1}/{len(content)}")
    handler.wfile.write(content)


def cuts(size: int) -> Behaviour:
    """Breaks off after so many bytes."""

    def behave(handler: Handler, content: bytes) -> None:
        handler.wfile.write(handler.begin(content)[:size])

    return behave


def stalls(size: int) -> Behaviour:
    """Falls silent after so many bytes, until it is told to go on."""

    def behave(handler: Handler, content: bytes) -> None:
        rest = handler.begin(content)
        handler.wfile.write(rest[:size])
        handler.server.go_on.wait(60)
        handler.wfile.write(rest[size:])

    return behave


def refuses(status: int) -> Behaviour:
    def behave(handler: Handler, content: bytes) -> None:
        handler.head(status, Content_Length=0)

    return behave


class Loopback(ThreadingHTTPServer):
    """Serves `content` by path, each request as planned; the last plan stays, and without any it is honest."""

    daemon_threads = True
    block_on_close = False

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.content: dict[str, bytes] = {}
        self.plans: dict[str, list[Behaviour]] = {}
        self.asked: list[tuple[str, str | None]] = []
        self.go_on = threading.Event()
        self._thread = threading.Thread(target=self.serve_forever, args=(0.01,))

    def url(self, path: str) -> str:
        return f"http://127.0.0.1:{self.server_port}{path}"

    def plan(self, path: str, *behaviours: Behaviour) -> None:
        self.plans[path] = list(behaviours)

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that went away."""

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        self.go_on.set()
        self.shutdown()
        self._thread.join()
        self.server_close()


def idx(shape: tuple[int, ...], values: bytes) -> bytes:
    return struct.pack(f">HBB{len(shape)}I", 0, 8, len(shape), *shape) + values


def noise(size: int, seed: int = 0) -> bytes:
    return random.Random(seed).randbytes(size)


def mnist_files(train: int = 6, test: int = 4) -> dict[str, bytes]:
    parts = (("train", train), ("t10k", test))
    images = {f"{part}-images-idx3-ubyte": idx((size, 28, 28), noise(size * 784, size)) for part, size in parts}
    labels = {f"{part}-labels-idx1-ubyte": idx((size,), bytes(i % 10 for i in range(size))) for part, size in parts}
    return images | labels


def cifar_batches(rows: int = 3) -> dict[str, bytes]:
    names = [f"data_batch_{number}.bin" for number in range(1, 6)] + ["test_batch.bin"]
    return {
        name: b"".join(bytes([(place + row) % 10]) + noise(3072, 10 * place + row) for row in range(rows))
        for place, name in enumerate(names)
    }


def tar_of(members: dict[str, bytes]) -> bytes:
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w:gz") as tar:
        for name, content in members.items():
            about = tarfile.TarInfo(name)
            about.size = len(content)
            tar.addfile(about, io.BytesIO(content))
    return made.getvalue()


def described(path: str, content: bytes) -> DataFile:
    return DataFile(path, len(content), hashlib.sha256(content).hexdigest())


def published(path: str, content: bytes, urls: tuple[str, ...], *files: DataFile) -> Archive:
    about = described(path, content)
    return Archive(path, about.size, about.sha256, urls, files)


def serve_mnist(server: Loopback) -> Dataset:
    """At /<name>.gz, with a second source at /mirror/<name>.gz."""
    archives = []
    for name, content in mnist_files().items():
        path, zipped = f"MNIST/raw/{name}", gzip.compress(content, mtime=0)
        places = (f"/{name}.gz", f"/mirror/{name}.gz")
        server.content |= dict.fromkeys(places, zipped)
        archives.append(published(f"{path}.gz", zipped, tuple(map(server.url, places)), described(path, content)))
    return Dataset("mnist", "MNIST", tuple(archives))


def serve_cifar(server: Loopback, **others: bytes) -> Dataset:
    """At /cifar.tar.gz, from that source alone; `others` are in the archive, too."""
    members = {f"cifar-10-batches-bin/{name}": content for name, content in cifar_batches().items()}
    archive = tar_of(others | members)
    server.content["/cifar.tar.gz"] = archive
    files = [described(name, content) for name, content in members.items()]
    made = published("cifar-10-binary.tar.gz", archive, (server.url("/cifar.tar.gz"),), *files)
    return Dataset("cifar-10", "CIFAR-10", (made,))


def fetch_patiently(dataset: Dataset, folder: str) -> None:
    """For another process."""
    fetch(dataset, Path(folder), patience=Patience(timeout=20))


def lay_out(folder: Path, title: str, contents: dict[str, bytes]) -> Dataset:
    """Writes the files, and describes them as the official ones are described."""
    archives = []
    for path, content in contents.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(content)
        archives.append(published(f"{path}.gz", b"", (f"http://source/{path}.gz",), described(path, content)))
    return Dataset(title.lower(), title, tuple(archives))


def lay_out_mnist(folder: Path) -> Dataset:
    return lay_out(folder, "MNIST", {f"MNIST/raw/{name}": content for name, content in mnist_files().items()})


def lay_out_cifar(folder: Path) -> Dataset:
    batches = {f"cifar-10-batches-bin/{name}": content for name, content in cifar_batches().items()}
    return lay_out(folder, "CIFAR-10", batches)
