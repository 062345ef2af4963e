"""The command line `egalitarian`: options, live display, text tables, and one function for each command."""

from egalitarian.lab.console.cli import main
from egalitarian.lab.console.tables import Duration, Durations, Machine, load_durations

__all__ = ["Duration", "Durations", "Machine", "load_durations", "main"]
