"""Benchmarks of `egalitarian bench`: what EGD costs on this machine, by kernel, by step and by whole experiment.

A theme is one table. `STEPS` takes further kinds of training steps, to be compared with the lab's own.
"""

from egalitarian.lab.bench.experiments import STEPS
from egalitarian.lab.bench.measured import THEMES, Measured, chosen, measure_theme
from egalitarian.lab.bench.theme import BenchRow, Column, Setup, Theme

__all__ = ["STEPS", "THEMES", "BenchRow", "Column", "Measured", "Setup", "Theme", "chosen", "measure_theme"]
