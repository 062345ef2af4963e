"""Benchmarks of `egalitarian bench`: what EGD costs on this machine, by kernel, by step and by whole experiment.

A theme is one table. `STEPS` takes further kinds of training steps, to be compared with the lab's own.
"""

from collections.abc import Sequence

from egalitarian.lab.bench import experiments, kernels, steps, train
from egalitarian.lab.bench.experiments import STEPS
from egalitarian.lab.bench.measured import Measured, measure_theme
from egalitarian.lab.bench.theme import BenchRow, Column, Setup, Theme
from egalitarian.lab.bench.train import chosen_workloads
from egalitarian.lab.config import SpecError, nearest

THEMES = {theme.name: theme for theme in (kernels.THEME, steps.THEME, train.THEME, experiments.THEME, experiments.CLOCK)}
LONG = ("train", "clock")
"""Measured only if named: many processes, and the paper's SGD on six tasks, which takes hours."""


def chosen(names: Sequence[str]) -> list[Theme]:
    """The named themes, each once, or all but the long ones."""
    for name in names:
        if name not in THEMES:
            hint = nearest(name, THEMES) or "leave it out for the usual ones"
            raise SpecError(f"theme must be one of {', '.join(THEMES)}, got {name!r}; {hint}")
    return [THEMES[name] for name in dict.fromkeys(names or (name for name in THEMES if name not in LONG))]


__all__ = [
    "STEPS",
    "THEMES",
    "BenchRow",
    "Column",
    "Measured",
    "Setup",
    "Theme",
    "chosen",
    "chosen_workloads",
    "measure_theme",
]
