"""Trains two networks and writes docs/equalising.json, which the animation of docs/why.md shows, and its pictures.

`python docs/make_animation.py` trains (a minute on a CPU); `--draw` only draws docs/equalising.png and, for the README,
docs/equalising.gif again. Both networks
learn addition mod 97 from the same start: methods `sgd-lr8` and `egd-lr4` of the experiment `grokking`, seed 0. The
accuracies are those of every epoch. At some epochs, more of them early, the singular values of the hidden gradient of the
network with EGD are recorded, too: on the first batch, before and after EGD.
"""

from __future__ import annotations

import argparse
import json
import platform
from collections.abc import Mapping, Sequence
from datetime import date
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from PIL import Image
from torch import Tensor

import egalitarian as eg
from egalitarian.lab.config import Record, load
from egalitarian.lab.report.figures import OKABE_ITO, styled
from egalitarian.lab.training import Ensemble, Stepper, train

FOLDER = Path(__file__).parent
RECORDING, PICTURE, GIF = (FOLDER / f"equalising.{ending}" for ending in ("json", "png", "gif"))
EXPERIMENT, SEED, EPOCHS = "grokking", 0, 200
METHODS = {"plain": "sgd-lr8", "egd": "egd-lr4"}
SHOWN = (*range(17), 20, 25, 32, 40, 50, 63, 80, 100, 126, 158, 199)
"""Epochs whose spectra are recorded: each of those in which EGD groks, then ten per factor of ten."""
RED = OKABE_ITO["vermillion"]
GIF_COLOURS = 32
EVERY = 8
"""Every so many singular values are recorded: of 193 these are 25, with the largest and the smallest among them."""


class Recorder:
    """A meter: accuracies of every epoch, spectra of some."""

    splits_time = False

    def __init__(self, ensemble: Ensemble, shown: tuple[int, ...]) -> None:
        self.ensemble, self.shown = ensemble, shown
        self.spectra: list[dict[str, Any]] = []
        self.accuracies: list[tuple[float, float]] = []

    def wants_gradient(self, epoch: int) -> bool:
        return epoch in self.shown

    def take_gradient(self, gradient: Tensor) -> None:
        """The last of 194 is left out: it is zero and stays zero, since both halves of an input sum up to one."""
        before, after = (eg.spectrum(each[0]).values[:-1:EVERY] for each in (gradient, eg.polar(gradient)))
        self.spectra.append({"before": rounded(before), "after": rounded(after)})

    def measure(self, epoch: int) -> tuple[list[list[Record]], Tensor]:
        if epoch in self.shown:
            self.spectra[-1] = {"epoch": epoch, **self.spectra[-1]}
        learnt = self.ensemble.learnt()[1]
        inputs, labels = self.ensemble.test
        with torch.no_grad():
            right = self.ensemble.forward(inputs).argmax(-1) == labels
        self.accuracies.append((round(float(learnt[0]), 4), round(float(right.float().mean()), 4)))
        return [[{"epoch": epoch}]], torch.zeros(1)


def rounded(values: Tensor) -> list[float]:
    return [float(f"{value:.3g}") for value in values.tolist()]


def recorded(name: str, epochs: int, shown: tuple[int, ...]) -> Recorder:
    experiment = load(EXPERIMENT)
    ensemble = Ensemble(experiment, [SEED], torch.device("cpu"))
    recorder = Recorder(ensemble, shown)
    stepper = Stepper(experiment.methods[name], ensemble.parameters)
    for _ in islice(train(ensemble, stepper, meter=recorder), epochs):
        pass
    return recorder


def record(epochs: int) -> dict[str, Any]:
    plain = recorded(METHODS["plain"], epochs, ())
    egd = recorded(METHODS["egd"], epochs, tuple(epoch for epoch in SHOWN if epoch < epochs))
    return {
        "made": {
            "script": "docs/make_animation.py",
            "date": date.today().isoformat(),
            "torch": torch.__version__,
            "egalitarian": eg.__version__,
            "machine": f"{platform.machine()}, CPU",
        },
        "settings": {"experiment": EXPERIMENT, "seed": SEED, "methods": METHODS, "directions": 193, "every": EVERY},
        "plain": plain.accuracies,
        "egd": egd.accuracies,
        "frames": egd.spectra,
    }


@styled
def draw(recording: Mapping[str, Any]) -> Figure:
    """The spectra of the first frame, and all accuracies: what is seen where no script runs."""
    first = recording["frames"][0]
    figure, left, right = panels()
    bars(left, first["before"], "gradient, largest 1")
    left.plot(range(len(first["after"])), first["after"], "o", color=RED, markersize=4, label="after EGD")
    left.set_title("singular values")
    accuracies(right, recording, len(recording["egd"]))
    figure.legend(loc="outside lower center", frameon=False, ncols=3, fontsize=8)
    return figure


def panels() -> tuple[Figure, Axes, Axes]:
    figure = Figure(figsize=(8, 3.3), layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=(1, 1.3))
    left.set(ylim=(0, 1.05), xticks=[], yticks=[0, 1], xlabel="directions, strongest first")
    return figure, left, right


def bars(axis: Axes, values: Sequence[float], label: str) -> None:
    """Singular values, as shares of the largest."""
    axis.bar(range(len(values)), [value / values[0] for value in values], color="#8c8c8c", label=label)


def accuracies(axis: Axes, recording: Mapping[str, Any], epochs: int) -> None:
    """The accuracies of both networks in their first epochs."""
    for name, colour, title in (("plain", "#666666", "SGD"), ("egd", RED, "SGD with EGD")):
        for place, style, kind in ((0, ":", "training"), (1, "-", "test")):
            heights = [each[place] for each in recording[name][:epochs]]
            axis.plot(range(len(heights)), heights, style, color=colour, lw=1.8, label=f"{title}, {kind}")
    axis.set_xscale("symlog", linthresh=1, linscale=0.3, subs=range(2, 10))
    axis.set(ylim=(-0.03, 1.05), xlim=(0, len(recording["egd"])), title="accuracy", xlabel="epoch, from 0 (logarithmic)")
    axis.set_xticks([0, 1, 10, 100], ["0", "1", "10", "100"])
    axis.set_yticks([0, 0.5, 1], ["0", "50 %", "100 %"])


@styled
def frame(recording: Mapping[str, Any], index: int, share: float) -> Image.Image:
    """One frame of the GIF: the spectra of one recorded epoch, and the accuracies up to it.

    Args:
        index: of the recorded epoch.
        share: of the way from the gradient's singular values to one; 1 shows those after EGD.
    """
    shown = recording["frames"][index]
    figure, left, right = panels()
    bars(left, shown["before"], "gradient, largest 1")
    heights = [(1 - share) * value / shown["before"][0] + share for value in shown["before"]]
    left.bar(range(len(heights)), heights, fill=False, edgecolor=RED, linewidth=1.1, label="after EGD")
    left.set_title("singular values: G = U S Vᵀ" if share < 1 else "singular values: U Vᵀ")
    accuracies(right, recording, shown["epoch"] + 1)
    right.set_title(f"accuracy, epoch {shown['epoch']}")
    figure.legend(loc="outside lower center", frameon=False, ncols=3, fontsize=8)
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    return Image.fromarray(np.asarray(canvas.buffer_rgba())).convert("RGB")


def animate(recording: Mapping[str, Any], path: Path) -> None:
    """Writes the GIF: the first gradient is equalised, then the networks train. It plays twice, then rests."""
    rising = [(0, step / 6, 150 if step else 1200) for step in range(7)]
    steps = [*rising, *((index, 1.0, 300) for index in range(1, len(recording["frames"])))]
    images = [frame(recording, index, share) for index, share, _ in steps]
    palette = images[-1].quantize(GIF_COLOURS, Image.Quantize.MAXCOVERAGE)
    few = [image.quantize(palette=palette, dither=Image.Dither.NONE) for image in images]
    times = [time for _, _, time in steps]
    few[0].save(path, save_all=True, append_images=few[1:], duration=[*times[:-1], 3000], loop=1, optimize=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--draw", action="store_true", help="draw the stored recording; train nothing")
    if not parser.parse_args().draw:
        text = json.dumps(record(EPOCHS), separators=(",", ":")).replace('{"epoch"', '\n{"epoch"').replace(',"', ',\n"', 1)
        RECORDING.write_text(text + "\n", encoding="utf-8")
    recording = json.loads(RECORDING.read_text(encoding="utf-8"))
    draw(recording).savefig(PICTURE, dpi=200, metadata={"Software": None})
    animate(recording, GIF)


if __name__ == "__main__":
    main()
