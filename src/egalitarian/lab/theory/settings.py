"""paper/toy.toml as frozen values: one class per table, one field per key."""

from __future__ import annotations

import math
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from typing import Any, Protocol, TypeVar

Angles = tuple[float, ...]
Numbers = tuple[float, ...]


class ToyTable(Protocol):
    """A settings class that names its table in toy.toml."""

    @staticmethod
    def table() -> str: ...


T = TypeVar("T", bound=ToyTable)


@dataclass(frozen=True)
class CloudSettings:
    """The two clouds."""

    eps: float
    theta: float
    s: float
    points: int
    seed: int

    @staticmethod
    def table() -> str:
        return "clouds"


@dataclass(frozen=True)
class EqualCurveSettings:
    """Error curves where training and test distributions are equal (appendix)."""

    eps: Numbers
    theta: float
    eta: float
    zeta: Numbers
    start: float
    samples: int
    test_points: int
    seeds: int
    grid: int
    seed: int

    @staticmethod
    def table() -> str:
        return "equal_curves"


@dataclass(frozen=True)
class CurveSettings(EqualCurveSettings):
    """Error curves under distribution shift (Section 3)."""

    s: float

    @staticmethod
    def table() -> str:
        return "curves"


@dataclass(frozen=True)
class PlateauSettings:
    """Plateau length against eps and against zeta."""

    eps: Numbers
    theta: float
    s: float
    eta: float
    zeta: Numbers
    fixed_eps: float
    fixed_zeta: float
    samples: int
    seeds: int
    seed: int

    @staticmethod
    def table() -> str:
        return "plateaus"


@dataclass(frozen=True)
class ClaimSettings:
    """The grid on which each claim is compared with simulation."""

    eps: Numbers
    theta: Angles
    obtuse: Angles
    s: Numbers
    zeta: Numbers
    start: Angles
    far_zeta: Numbers
    polar_starts: int
    eta: float
    small_tau: float
    error_level: float
    samples: int
    samples_times_eps: float
    test_points: int
    draws: int
    seeds: int
    many_seeds: int
    seed: int
    sigmas: float
    order_slack: float

    @staticmethod
    def table() -> str:
        return "claims"

    def samples_for(self, eps: float) -> int:
        """max(samples, samples_times_eps / eps): the noise of w_ols is of order (n eps)^(-1/2)."""
        return max(self.samples, math.ceil(self.samples_times_eps / eps))


def read_toml() -> dict[str, Any]:
    """toy.toml, unchanged: `{table: {key: {value, source}}}`; a table may have a key `quick` with smaller sizes."""
    text = (resources.files("egalitarian.lab") / "paper" / "toy.toml").read_text(encoding="utf-8")
    return tomllib.loads(text)


def load_settings(kind: type[T], *, quick: bool = False) -> T:
    """The settings of one table, at the full or the quick size.

    >>> load_settings(CloudSettings).theta == math.pi / 4
    True
    """
    table: dict[str, Any] = read_toml()[kind.table()]
    overrides: Mapping[str, Any] = table.pop("quick", {})
    values = {**table, **(overrides if quick else {})}
    return kind(**dict(_field(key, entry["value"]) for key, entry in values.items()))


def _field(key: str, value: Any) -> tuple[str, Any]:
    if isinstance(value, list):
        return (key.removesuffix("_over_pi"), tuple(_field(key, one)[1] for one in value))
    return (key.removesuffix("_over_pi"), value * math.pi) if key.endswith("_over_pi") else (key, value)
