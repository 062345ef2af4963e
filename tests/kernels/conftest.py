"""Fixtures for the tests of several kernels."""

from collections.abc import Iterator

import pytest

from egalitarian.kernels import route


@pytest.fixture
def cholesky_for_all_sizes(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The polynomial route takes Cholesky steps for small matrices too."""
    monkeypatch.setattr(route, "CHOLESKY_FROM", 2)
    route._cached.cache_clear()
    yield
    route._cached.cache_clear()
