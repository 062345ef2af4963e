"""`Until`, the rule of the paper's Algorithm 1 that switches EGD off: for a plan, or for each element of a stack."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from numbers import Real
from typing import Any, Literal

import torch
from torch import Tensor

from egalitarian.checks import check_bool, check_integer, check_number
from egalitarian.optimizers.notices import warn_user


@dataclass(frozen=True)
class Until:
    """A rule for `attach`: switch EGD off once a metric passes a threshold.

    EGD switches off after `patience + 1` consecutive observations strictly beyond the threshold. The paper switches off
    once validation accuracy is above 0.95.

    Args:
        threshold: a finite number on the scale of the metric: 0.95 for a fraction, 95 for a percentage.
        mode: `"max"` for a metric that rises, such as accuracy. `"min"` for one that falls, such as a loss.
        patience: further observations beyond the threshold to wait for.
        resume: switch EGD on again after `patience + 1` consecutive observations at or below `threshold - margin`. With
            `mode="min"` they must be at or above `threshold + margin`.
        margin: how far the metric must fall back, on its own scale. It needs `resume=True`.

    Raises:
        ValueError: an argument is out of range.

    >>> from egalitarian import attach
    >>> model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.ReLU(), torch.nn.Linear(4, 2))
    >>> egd = attach(torch.optim.SGD(model.parameters(), lr=0.3), model, until=Until(0.95))
    >>> egd.observe(0.9), egd.observe(0.96)
    (True, False)
    """

    threshold: float
    mode: Literal["max", "min"] = "max"
    patience: int = 0
    resume: bool = False
    margin: float = 0.0

    def __post_init__(self) -> None:
        if not isinstance(self.threshold, Real) or not math.isfinite(self.threshold):
            raise ValueError(f"threshold must be a finite number, got {self.threshold!r}; to keep EGD on, pass until=None")
        if self.mode not in ("max", "min"):
            raise ValueError(f"mode must be 'max' or 'min', got {self.mode!r}; 'max' is for accuracy, 'min' for a loss")
        check_integer("patience", self.patience, "0 waits for none", least=0)
        check_number("margin", self.margin, "0 resumes at the threshold")
        check_bool("resume", self.resume)
        if self.margin and not self.resume:
            warn_user("margin has no effect without resume=True; pass resume=True or leave margin out")

    def _decide(self, active: Tensor, streak: Tensor, metric: Tensor) -> tuple[Tensor, Tensor]:
        """(active, streak) after one more observation; for a stack, element by element.

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


_LONGEST = 2**31
"""The largest streak that a saved state may have. Longer ones would overflow."""
_RETURNED = "load what state_dict() returned"

Setting = tuple[Tensor, Tensor]
"""The state of a switch: whether it is on, and how many observations in a row speak for the other side."""


class Switch:
    """On or off: as a whole, or for each element of a stack.

    The state is on the CPU, so that reading it does not synchronise. A step uses a copy on the device of the gradients.
    """

    def __init__(self, until: Until | None, stack: int | None, device: torch.device) -> None:
        self._until, self._stack, self._device = until, stack, device
        self._warned = False  # whether it has warned of a metric on another scale
        self._seen = False  # whether a metric has not been 0
        shape = () if stack is None else (stack,)
        self._on_device = torch.empty(shape, dtype=torch.bool, device=device)  # fixed memory: a captured step reads it
        self._set(torch.ones(shape, dtype=torch.bool, device="cpu"), torch.zeros(shape, dtype=torch.int64, device="cpu"))

    @property
    def active(self) -> bool | Tensor:
        return bool(self._active) if self._stack is None else self._active.clone()

    @property
    def setting(self) -> Setting:
        return self._active, self._streak

    def for_a_step(self) -> bool | Tensor:
        """True or False; for a stack with any element on, a tensor on the device."""
        if not bool(self._active.any()):
            return False
        return True if self._stack is None else self._on_device

    def turn(self, to: bool, mask: Tensor | Sequence[bool] | None) -> None:
        chosen = torch.ones_like(self._active) if mask is None else _on_cpu("mask", mask, "pass booleans")
        if chosen.dtype != torch.bool or chosen.shape != self._active.shape:
            raise ValueError(
                f"mask must be booleans of shape {tuple(self._active.shape)}, got {chosen.dtype} of shape "
                f"{tuple(chosen.shape)}; leave it out to switch everything"
            )
        self._set(torch.where(chosen, to, self._active), torch.where(chosen, 0, self._streak))

    def observe(self, metric: float | Tensor | Sequence[float]) -> None:
        if self._until is None:
            raise RuntimeError("observe() needs a rule, got until=None; call attach(..., until=Until(0.95))")
        values = _on_cpu("metric", metric, "pass a float or a tensor")
        if not hasattr(metric, "dtype") or not values.is_floating_point():  # a float of torch or numpy keeps its dtype
            values = _on_cpu("metric", metric, "pass a float or a tensor", torch.float64)
        if self._stack is None and values.numel() == 1:
            values = values.reshape(())
        if values.shape != self._active.shape:
            wanted = "a number" if self._stack is None else f"{self._stack} values, one per stack element"
            raise ValueError(f"metric must be {wanted}, got shape {tuple(values.shape)}; pass that many metrics")
        if values.isnan().any():
            raise ValueError(f"metric must be a number, got {metric}; skip this call, or switch with on() and off()")
        self._compare_scales(values, self._until)
        self._set(*self._until._decide(self._active, self._streak, values))

    def _compare_scales(self, values: Tensor, until: Until) -> None:
        """Warns once if one of metric and threshold is a fraction and the other a percentage.

        The first metric that is not 0 tells whether it is a fraction.
        """
        threshold, largest, first = until.threshold, float(values.max()), not self._seen
        self._seen |= bool(values.any())
        if self._warned or until.mode != "max":
            return
        if 0 < threshold <= 1 and largest > 1.001:
            problem = "is above 1", "a percentage, EGD switches off too early"
        elif first and 1.5 < threshold <= 100 and largest > 0 and (values >= 0).all() and largest <= 1:
            problem = "is between 0 and 1", "a fraction, EGD never switches off"
        else:
            return
        self._warned = True
        warn_user(
            f"metric {largest:g} {problem[0]}, but Until's threshold is {threshold:g}: if the metric is {problem[1]}; use "
            f"the same scale for both"
        )

    def state_dict(self) -> dict[str, Any]:
        until = None if self._until is None else repr(self._until)
        return {"active": self._active.tolist(), "streak": self._streak.tolist(), "until": until}

    def checked(self, state_dict: Mapping[str, Any]) -> Setting:
        """The setting in a `state_dict`, checked.

        Raises:
            ValueError: the setting is for another stack, or not valid.
        """
        active, streak = (_on_cpu(what, state_dict[what], _RETURNED) for what in ("active", "streak"))
        if active.dtype != torch.bool:
            raise ValueError(f"active must be True or False, got {state_dict['active']!r}; {_RETURNED}")
        integers = not (streak.is_floating_point() or streak.is_complex() or streak.dtype == torch.bool)
        if not integers or not ((streak >= 0) & (streak < _LONGEST)).all():
            raise ValueError(f"streak must be integers in [0, {_LONGEST}), got {state_dict['streak']!r}; {_RETURNED}")
        if active.shape != self._active.shape:
            raise ValueError(
                f"state_dict must be from a plan with a stack of shape {tuple(self._active.shape)}, got "
                f"{tuple(active.shape)}; attach to a plan with that stack"
            )
        if streak.shape != active.shape:
            raise ValueError(f"streak must have the shape {tuple(active.shape)}, got {tuple(streak.shape)}; {_RETURNED}")
        return active, streak.to(torch.int64)

    def stays_off(self, setting: Setting, state_dict: Mapping[str, Any]) -> bool:
        """Whether a rule switched EGD off in the saved run, and this switch has no rule."""
        return self._until is None and state_dict.get("until") is not None and not bool(setting[0].any())

    def restore(self, setting: Setting) -> None:
        self._set(*setting)

    def _set(self, active: Tensor, streak: Tensor) -> None:
        self._active, self._streak = active, streak
        self._on_device.copy_(active)


def _on_cpu(what: str, value: Any, way_out: str, dtype: torch.dtype | None = None) -> Tensor:
    try:
        if isinstance(value, Tensor):
            value = value.detach()
        elif isinstance(value, (Decimal, Fraction)):
            value = float(value)
        if getattr(value, "layout", torch.strided) is not torch.strided:
            raise TypeError
        return torch.as_tensor(value, dtype=dtype, device="cpu")
    except (TypeError, ValueError, RuntimeError, OverflowError):
        raise TypeError(f"{what} must be a number or a sequence of numbers, got {value!r}; {way_out}") from None
