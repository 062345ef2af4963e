"""How long each experiment takes on a CPU and on a GPU: durations.toml, written by benchmarks/durations.py."""

from __future__ import annotations

import math
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import resources

from egalitarian.lab.config.schema import Settings, read, setting

UNITS = ((1, "s", 60), (60, "min", 60), (3600, "h", 48), (24 * 3600, "days", math.inf))
"""The seconds of a unit, its name, and how many are given in the next one."""


@dataclass(frozen=True, kw_only=True)
class Machine(Settings):
    """Where it was measured."""

    hardware: str
    date: str


@dataclass(frozen=True, kw_only=True)
class Duration(Settings):
    """Seconds for the methods trained by default and 8 seeds, training and measuring; None: not measured."""

    cpu: float | None = setting(None, above=0)
    gpu: float | None = setting(None, above=0)


@dataclass(frozen=True, kw_only=True)
class Durations(Settings):
    """All of the file."""

    cpu: Machine
    gpu: Machine
    seconds: Mapping[str, Duration] = field(default_factory=dict)
    """By experiment."""

    def of(self, experiment: str) -> Duration:
        return self.seconds.get(experiment, Duration())


def load_durations() -> Durations:
    text = (resources.files("egalitarian.lab") / "console" / "durations.toml").read_text(encoding="utf-8")
    return read(Durations, tomllib.loads(text), "durations")


def about(seconds: float | None) -> str:
    """To one digit, in a unit that suits, at least one of it: `8 min`; `-` where it is not known."""
    if seconds is None:
        return "-"
    rounded = ((max(1.0, float(f"{seconds / unit:.1g}")), name, most) for unit, name, most in UNITS)
    return next(f"{number:g} {name}" for number, name, most in rounded if number < most)
