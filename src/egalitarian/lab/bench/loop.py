"""Training and nothing else: what a step is, and a loop to the threshold that measures and stores nothing besides."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from egalitarian.lab.config.spec import LowRankPolar, Method, Polar
from egalitarian.lab.training.capture import Steps, recorded, steps_for
from egalitarian.lab.training.ensemble import Ensemble
from egalitarian.lab.training.metrics import evaluate
from egalitarian.lab.training.stepper import Stepper

HALF = 0.5
"""The accuracy whose epoch rounding moves least."""
MakeSteps = Callable[[Ensemble, Stepper], Steps]

STEPS: dict[str, MakeSteps] = {"": steps_for}
"""How a step is carried out, by what is said behind a method's name: the lab's own way. Others are measured beside it."""


class Trained(NamedTuple):
    """What became of some seeds, and what it took."""

    crossed: list[int | None]
    """By seed: the first epoch, from 0, whose test accuracy is past the threshold."""
    half: list[int | None]
    """The same for one half."""
    epochs: int
    seconds: float


def train_to(
    threshold: float,
    ensemble: Ensemble,
    stepper: Stepper,
    make_steps: MakeSteps,
    budget: int,
    tell: Callable[[str], None] = lambda doing: None,
) -> Trained:
    """Trains until every seed is past the threshold, or the budget is spent; all seeds stay till the end.

    The clock covers the making of the step, the batches, the training and one test accuracy per epoch.
    """
    start = now(ensemble.device)
    steps, test_accuracy = make_steps(ensemble, stepper), _meter(ensemble)
    crossed: dict[float, list[int | None]] = {level: [None] * len(ensemble.seeds) for level in (HALF, threshold)}
    choices = ensemble.choices(0)
    for epoch in range(budget):
        for chosen in choices:
            steps.gradients(chosen)
            steps.update()
        choices = ensemble.choices(epoch + 1)  # while a GPU is still at work
        accuracy = test_accuracy().cpu()
        stepper.observe(accuracy)
        for level, epochs in crossed.items():
            for seed, share in enumerate(accuracy.tolist()):
                if epochs[seed] is None and share > level:
                    epochs[seed] = epoch
        if None not in crossed[threshold]:
            break
        tell(f"epoch {epoch}, test accuracy {accuracy.median():.1%}")
    return Trained(crossed[threshold], crossed[HALF], epoch + 1, now(ensemble.device) - start)


def _meter(ensemble: Ensemble) -> Callable[[], Tensor]:
    def measure() -> Tensor:
        return evaluate(ensemble.forward, ensemble.loss, *ensemble.test)[1]

    return recorded(measure) if ensemble.device.type == "cuda" else measure


def now(device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


def with_polar(method: Method, precision: Literal["exact", "fast"]) -> Method:
    """The same with the polar factor in this mode."""
    links = (link.replace(precision=precision) if isinstance(link, Polar) else link for link in method.transform)
    return method.replace(transform=tuple(links))


def randomized(method: Method, rank: int) -> Method:
    """The same with the leading directions in place of all."""
    links = (LowRankPolar(rank=rank) if isinstance(link, Polar) else link for link in method.transform)
    return method.replace(transform=tuple(links))
