"""The picture at the end of `egalitarian grok`: test and train accuracy of each method over logarithmic epochs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from matplotlib.figure import Figure

from egalitarian.lab.grok import Shown
from egalitarian.lab.report.lines import literal, look
from egalitarian.lab.report.style import WIDTH, styled
from egalitarian.lab.spec import Experiment
from egalitarian.lab.store import Record, Store


@styled
def draw_grok(store: Store, experiment: Experiment, shown: Sequence[Shown], path: Path) -> None:
    """Every seed is a line: solid for test, dotted for train accuracy; a dot where the threshold is passed."""
    figure = Figure(figsize=(WIDTH, 3.4), layout="constrained")
    axis = figure.add_subplot()
    names = [each.name for each in shown]
    for each in shown:
        drawn = look(each.name, names)
        for number, progress in enumerate(each.runs):
            records = [record for record in store.find(progress.run).records() if "snapshot" not in record]
            records = records[: progress.next_epoch]
            label = literal(experiment.method(each.name).title) if number == 0 else None
            axis.plot(*_curve(records, "test_accuracy"), color=drawn.colour, label=label, zorder=3)
            axis.plot(*_curve(records, "train_accuracy"), color=drawn.colour, ls=":", lw=0.9, alpha=0.8)
            if progress.crossed is not None:
                height = records[progress.crossed]["test_accuracy"]
                axis.plot(progress.crossed + 1, height, drawn.marker, color=drawn.colour, zorder=4)
    axis.axhline(experiment.measure.threshold, color="#999999", lw=0.6, ls="--")
    axis.set(xscale="log", xlabel="epoch + 1", ylabel="accuracy", ylim=(-0.02, 1.04))
    heading = literal(experiment.heading)
    axis.set_title(f"{heading}: test accuracy (solid), train accuracy (dotted)")
    figure.legend(loc="outside lower center", ncols=min(3, len(shown)))
    figure.savefig(path)


def _curve(records: Sequence[Record], measure: str) -> tuple[list[int], list[float]]:
    return [record["epoch"] + 1 for record in records], [record[measure] for record in records]
