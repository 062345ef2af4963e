"""When to stop: Algorithm 1's switch-off, per element of a stack."""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor


@dataclass(frozen=True)
class Until:
    """Switches EGD off once a metric has passed a threshold (the paper: validation accuracy above 0.95).

    Off after `patience + 1` consecutive observations strictly beyond the threshold.

    Args:
        threshold: of the metric.
        mode: `"max"` for a metric that rises (accuracy), `"min"` for one that falls (loss).
        patience: further observations beyond the threshold to wait for.
        resume: switch on again after as many consecutive observations at or below `threshold - margin` (for `"min"`: at
            or above `threshold + margin`).
        margin: see `resume`.
    """

    threshold: float
    mode: Literal["max", "min"] = "max"
    patience: int = 0
    resume: bool = False
    margin: float = 0.0

    def __post_init__(self) -> None:
        if not math.isfinite(self.threshold):
            raise ValueError(f"threshold must be a finite number, got {self.threshold}; leave until=None to never stop")
        if self.mode not in ("max", "min"):
            raise ValueError(f"mode must be 'max' or 'min', got {self.mode!r}; 'max' is for accuracy, 'min' for a loss")
        if not isinstance(self.patience, int) or self.patience < 0:
            raise ValueError(f"patience must be an integer >= 0, got {self.patience!r}; 0 switches at the first")
        if not 0 <= self.margin < math.inf:
            raise ValueError(f"margin must be a number >= 0, got {self.margin}; it widens the gap before resuming")
        if self.margin and not self.resume:
            warnings.warn("margin has no effect without resume=True", stacklevel=3)

    def decide(self, active: Tensor, streak: Tensor, metric: Tensor) -> tuple[Tensor, Tensor]:
        """(active, streak) after one more observation; elementwise, so a stack decides for each of its elements.

        Compares in the metric's own dtype: a float32 accuracy of 0.85 is not beyond a threshold of 0.85.
        """
        if self.mode == "max":
            beyond, back = metric > self.threshold, metric <= self.threshold - self.margin
        else:
            beyond, back = metric < self.threshold, metric >= self.threshold + self.margin
        counts = torch.where(active, beyond, back & self.resume)
        streak = torch.where(counts, streak + 1, 0)
        switch = streak > self.patience
        return active ^ switch, torch.where(switch, 0, streak)
