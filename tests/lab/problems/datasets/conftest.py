"""What the tests of fetching share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from listening import Heard
from webserver import Loopback, serve_cifar

from egalitarian.lab.problems.datasets.files import Dataset


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Loopback]:
    monkeypatch.setenv("no_proxy", "*")
    with Loopback() as made:
        yield made


@pytest.fixture
def heard() -> Heard:
    return Heard()


@pytest.fixture
def cifar(server: Loopback) -> Dataset:
    return serve_cifar(server, readme=b"not wanted")
