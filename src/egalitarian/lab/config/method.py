"""A method as a frozen value: optimizers, gradient transforms, where weight decay enters.

`spec.py` has the experiment around it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from egalitarian.lab.config.schema import Kind, Settings, SpecError, setting

Tier = Literal["exact", "fast", "coarse"]
LARGEST = 1e30
"""No number of an optimizer or a transform is larger: float32 ends at 3.4e38, and steps multiply them."""

BETAS = {"lion": (0.9, 0.99)}
"""By optimizer, where they are not Adam's 0.9 and 0.999. Lion's: Chen et al. 2023, "Symbolic discovery of optimization
algorithms", Section 5."""
DECOUPLED = ("adamw", "lion", "muon")
"""Optimizers that know decay in this form only."""


def _refuse_huge(numbers: Mapping[str, Any]) -> None:
    """Torch's own error for a number beyond float32 names none."""
    for what, number in numbers.items():
        if isinstance(number, float) and abs(number) > LARGEST:
            raise SpecError(f"{what} must be at most {LARGEST:g}, got {number:g}; lower it: float32 ends at 3.4e38")


@dataclass(frozen=True, kw_only=True)
class Optim(Settings):
    """One optimizer."""

    optimizer: Literal["sgd", "adam", "adamw", "radam", "rmsprop", "lion", "muon"] = setting("sgd")
    lr: float = setting(0.1, above=0)
    weight_decay: float = setting(0.0, least=0)
    momentum: float = setting(0.0, least=0, below=1)
    nesterov: bool = setting(False)
    betas: tuple[float, ...] = setting(default_from=lambda own: BETAS.get(own.optimizer, (0.9, 0.999)), least=0, below=1)
    """The default is the optimizer's own."""

    def __post_init__(self) -> None:
        super().__post_init__()
        _refuse_huge({**vars(self), "lr * weight_decay": self.lr * self.weight_decay})
        if self.momentum and self.optimizer not in ("sgd", "muon", "rmsprop"):
            raise SpecError(f"momentum must be 0 for {self.optimizer}, got {self.momentum:g}; use betas")
        if self.nesterov and (not self.momentum or self.optimizer not in ("sgd", "muon")):
            why = f"for {self.optimizer}" if self.momentum else "without momentum"
            raise SpecError(f"nesterov must be false {why}, got true; it is a kind of momentum of sgd and muon")
        if len(self.betas) != 2:
            raise SpecError(f"betas must be two numbers, got {list(self.betas)}; for example [0.9, 0.999]")


@dataclass(frozen=True, kw_only=True)
class TransformSettings(Kind):
    """One link of a chain of gradient transforms. Kinds have the names of the transforms."""

    def __post_init__(self) -> None:
        super().__post_init__()
        _refuse_huge(vars(self))


@dataclass(frozen=True, kw_only=True)
class PolarSettings(TransformSettings, kind="polar"):
    """U Vᵀ."""

    precision: Literal["auto", "exact", "fast", "coarse"] = setting("auto")
    """Fast: accurate to 1e-3 for directions above 1e-3 of the largest; weaker ones come out weaker. Coarse: singular values
    between 0.65 and 1.25 (`egalitarian.polar`).
    Auto: fast in float32 on a GPU, else exact; a run's id and spec.json have the tier that was taken."""


@dataclass(frozen=True, kw_only=True)
class LowRankPolarSettings(TransformSettings, kind="lowrank-polar"):
    """The leading directions, by a randomized SVD."""

    rank: int = setting(least=1)
    iterations: int = setting(2, least=1)
    oversample: int = setting(0, least=0)
    fixed: bool = setting(False)
    """One sketch for all steps, as in the authors' JAX code, instead of a new one for each step."""
    share: float | None = setting(None, above=0, most=1)
    """Adaptive rank: the smallest, at most `rank`, that keeps this share of the squared singular values."""
    cap: bool = setting(False)
    """Whether a matrix with fewer directions than `rank` takes all it has, instead of being refused."""


@dataclass(frozen=True, kw_only=True)
class RowNormSettings(TransformSettings, kind="row-norm"):
    """Each row of the gradient, one output unit's, divided by its norm; the paper's column norm."""

    floor: float = setting(above=0)


@dataclass(frozen=True, kw_only=True)
class NaturalSettings(TransformSettings, kind="natural"):
    """U S⁻¹ Vᵀ."""


@dataclass(frozen=True, kw_only=True)
class SpectrumSettings(TransformSettings):
    """U f(S) Vᵀ: other singular values, the directions as they are. `training/spectra.py` says what is comparable."""


@dataclass(frozen=True, kw_only=True)
class PowerSettings(SpectrumSettings, kind="power"):
    """U S^(1-c) Vᵀ: the gradient for c = 0, EGD for 1, the natural gradient for 2."""

    c: float = setting(least=0, most=2)
    rescaled: bool = setting(False)
    """Whether the result gets the Frobenius norm of U Vᵀ, instead of the gradient's own scale."""


@dataclass(frozen=True, kw_only=True)
class DrawnSettings(SpectrumSettings):
    """Random values, with the Frobenius norm of U Vᵀ."""

    seed: int = setting(0, least=0)
    fixed: bool = setting(False)
    """One draw for all steps, by a direction's rank, instead of a new one for each step."""


@dataclass(frozen=True, kw_only=True)
class RandomSpectrumSettings(DrawnSettings, kind="random-spectrum"):
    """Uniform values."""


@dataclass(frozen=True, kw_only=True)
class HalfSpectrumSettings(DrawnSettings, kind="half-spectrum"):
    """Equal values on a random half of the directions, 0 on the others."""


@dataclass(frozen=True, kw_only=True)
class ReversedSpectrumSettings(SpectrumSettings, kind="reversed-spectrum"):
    """The gradient's values in reverse order, with the Frobenius norm of U Vᵀ."""


@dataclass(frozen=True, kw_only=True)
class FilterSettings(TransformSettings):
    """A filter over time of every gradient that it acts on."""

    on: Literal["all", "targets"] = setting("all")
    """Whose gradients: those of all parameters, or of the targets alone, so that the others take plain steps."""


@dataclass(frozen=True, kw_only=True)
class MomentumSettings(FilterSettings, kind="momentum"):
    """A running mean before the next transform: followed by `polar`, Muon's order with an exact factor."""

    beta: float = setting(0.95, least=0, below=1)
    nesterov: bool = setting(False)


@dataclass(frozen=True, kw_only=True)
class GrokfastEMASettings(FilterSettings, kind="grokfast-ema"):
    """Adds lamb times the running mean."""

    alpha: float = setting(least=0, below=1)
    lamb: float = setting(least=0)


@dataclass(frozen=True, kw_only=True)
class GrokfastMASettings(FilterSettings, kind="grokfast-ma"):
    """Adds lamb times the mean of the last gradients."""

    window: int = setting(least=1)
    lamb: float = setting(least=0)


def auto_tier(device: str, precision: str) -> Tier:
    """The tier that `auto` means on a type of device, in float32 or float64."""
    return "fast" if device == "cuda" and precision == "float32" else "exact"


@dataclass(frozen=True, kw_only=True)
class Method(Settings):
    """How the weights are updated: optimizers, transforms, where weight decay enters, when the transforms are off."""

    title: str = setting(meaning=False)
    optim: Optim
    """For every parameter."""
    hidden: Optim | None = None
    """For the target matrices, where it differs."""
    groups: Mapping[str, Optim] = field(default_factory=dict)
    """For the parameters of one module, where they differ again; by the module's name, as in `groups.output.lr`."""
    transform: tuple[TransformSettings, ...] = ()
    targets: tuple[str, ...] = ("hidden.weight",)
    """The matrices that are transformed, clipped, and have the settings of `hidden`: names or patterns."""
    decay: Literal["before", "after", "decoupled"] = "before"
    """Where weight decay enters: before the transforms, in the gradient; after them, by the optimizer; or decoupled,
    shrinking the weights by lr * weight_decay."""
    clip: float | None = setting(None, above=0, most=LARGEST)
    """The largest l2 norm of a row of a target, one output unit's weights: longer ones are scaled down to it after every
    step (Clip to Grok, Volchkov and Rivlin 2026); None: no row is."""
    orthograd: bool = setting(False)
    """Whether every parameter's gradient loses its part along the weights before the transforms, and the rest gets the
    gradient's norm (OrthoGrad, Prieto et al. 2025)."""
    until: float | None = setting(None, above=0, below=1)
    """Test accuracy past which the transforms are off, as in the authors' code; None: never."""
    decayed: Literal["matrices", "all"] = "matrices"
    """Which parameters weight decay acts on: matrices only, embeddings among them, or biases and norms as well."""
    epochs: int = setting(least=1, meaning=False)
    """The budget of a seed that does not pass the threshold."""
    by_default: bool = setting(True, meaning=False)
    """Whether `egalitarian run` trains it when no method is named."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check_optimizers()
        for optim in self._optims:
            if optim.weight_decay:
                self._check_decay(optim)
        if self.orthograd and self.decay == "before" and any(optim.weight_decay for optim in self._optims):
            raise SpecError(
                "decay must be 'after' or 'decoupled' with orthograd, got 'before': its gradient is along the weights, so "
                "orthograd would remove it; choose another, or weight_decay = 0"
            )
        if self.until is not None and not self.transform:
            raise SpecError(
                f"until must be absent without a transform, got {self.until:g}; remove it: there is nothing to switch off"
            )

    @property
    def _optims(self) -> tuple[Optim, ...]:
        return (self.optim, self.hidden or self.optim, *self.groups.values())

    @property
    def tiers(self) -> tuple[str, ...]:
        """The precision of each polar factor in the chain of transforms, `auto` among them."""
        return tuple(link.precision for link in self.transform if isinstance(link, PolarSettings))

    def has(self, optimizer: str) -> bool:
        """Whether some parameters may have this optimizer."""
        return any(optim.optimizer == optimizer for optim in self._optims)

    def with_tier(self, tier: Tier) -> Method:
        """The method with this tier for `auto`."""
        if "auto" not in self.tiers:
            return self
        free = [isinstance(link, PolarSettings) and link.precision == "auto" for link in self.transform]
        links = zip(self.transform, free, strict=True)
        return self.replace(transform=tuple(link.replace(precision=tier) if is_free else link for link, is_free in links))

    def _check_optimizers(self) -> None:
        """Which optimizers a method may combine, and with which transforms."""
        hidden = self.hidden or self.optim
        if self.optim.optimizer == "muon":
            raise SpecError("optim.optimizer must work for every parameter, got 'muon'; put it into [hidden]")
        if hidden.optimizer == "muon" and self.transform:
            raise SpecError(
                "transform must be empty with muon on the hidden matrix, got some; remove them: Muon equalises by itself"
            )
        on_all = any(isinstance(link, FilterSettings) and link.on == "all" for link in self.transform)
        if hidden.optimizer != self.optim.optimizer and on_all:
            raise SpecError(
                f"hidden.optimizer must be {self.optim.optimizer!r} with a filter on all parameters (momentum, grokfast), "
                f"got {hidden.optimizer!r}; use one optimizer, or set the filter's on = 'targets'"
            )
        for name, own in self.groups.items():
            if own.optimizer not in (self.optim.optimizer, hidden.optimizer):
                kinds = " or ".join(dict.fromkeys(repr(each.optimizer) for each in (self.optim, hidden)))
                raise SpecError(f"groups.{name}.optimizer must be {kinds}, got {own.optimizer!r}; leave it out")

    def _check_decay(self, optim: Optim) -> None:
        """Which optimizers can decay the weights in this method's form."""
        name = optim.optimizer
        if self.decay == "decoupled" and name not in ("sgd", *DECOUPLED):
            raise SpecError(f"decay must be 'after' or 'before' with {name}, got 'decoupled'; or use adamw")
        if self.decay == "decoupled" and name == "sgd" and optim.momentum:
            raise SpecError("decay must be 'after' or 'before' for sgd with momentum, got 'decoupled'; or use adamw")
        if self.decay != "decoupled" and name in DECOUPLED:
            raise SpecError(f"decay must be 'decoupled' with {name}, got {self.decay!r}; it has no other form")
