"""An experiment as a frozen value: task, model, training, methods, measure, claims, and where each number comes from.

No torch here. Tasks and models bring their own settings (`tasks/`, `models/`, or a user's file); `catalog.py` reads
them all from TOML.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from egalitarian.lab.config import renamed
from egalitarian.lab.config.schema import Kind, Settings, SpecError, everything, meaning, nearest, setting

VERSION = 1
"""Raised whenever the same settings give other results than before; part of every run's id."""

Loss = Literal["cross-entropy", "squared-error", "one-hot-squared-error", "hinge"]


@dataclass(frozen=True, kw_only=True)
class Task(Kind):
    """What is to be learnt. A kind of task is a subclass with a `build`; see `tasks/`."""

    code: str = setting("")
    """Of a user's own task: a digest of its file."""


@dataclass(frozen=True, kw_only=True)
class Model(Kind):
    """What learns it. A kind of model is a subclass with a `start` and a `one`; see `models/`."""


@dataclass(frozen=True, kw_only=True)
class Training(Settings):
    """How the loss is made, and how the data come by."""

    loss: Loss
    batch: int = setting(least=1)
    drop_last: bool = setting(True)
    """Whether an epoch's last, incomplete batch is left out."""
    precision: Literal["float32", "float64"] = setting("float32")
    passes: int = setting(1, least=1)
    """Over the data, in one epoch: everything is measured at an epoch's end, so more of them is to measure less often."""
    warmup: int = setting(0, least=0)
    """Steps in which the learning rates rise from 0 to what they are, in a straight line."""
    validation: float = setting(0.0, least=0, below=1)
    """The share of the test points that is set apart for the switch-off to read; test accuracy does not see it then."""
    accuracy: Literal["after", "during"] = setting("after")
    """When training loss and accuracy are read: of all points after an epoch; or during it, of every batch before its own
    step, as training programs print them."""

    def batches(self, points: int) -> int:
        """Steps of one pass over so many training points."""
        whole, rest = divmod(points, self.batch)
        return whole + (rest > 0 and not self.drop_last)


@dataclass(frozen=True, kw_only=True)
class Measure(Settings):
    """When a run counts as having grokked. Does not change a run, only what is read from it."""

    threshold: float = setting(above=0, most=1, meaning=False)
    """Test accuracy that must be exceeded, read at the end of every epoch; epochs count from 0. 1 never is: a run then goes
    on to the end of its budget."""
    past: int = setting(5, least=0, meaning=False)
    """How many epochs a run goes on after that."""
    spectra: Literal["auto", "epochs", "snapshots"] = setting("auto", meaning=False)
    """When the gradient's singular values are read: at every epoch, or ten times a decade. They take a GPU longer than the
    epoch itself, so auto is snapshots there and epochs elsewhere."""

    @property
    def waits(self) -> bool:
        """Whether there is an accuracy that ends a run."""
        return self.threshold < 1


@dataclass(frozen=True, kw_only=True)
class Optim(Settings):
    """One torch optimizer."""

    optimizer: Literal["sgd", "adam", "adamw", "radam", "rmsprop", "muon"] = setting("sgd")
    lr: float = setting(0.1, above=0)
    weight_decay: float = setting(0.0, least=0)
    momentum: float = setting(0.0, least=0, below=1)
    nesterov: bool = setting(False)
    betas: tuple[float, ...] = setting((0.9, 0.999), least=0, below=1)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.momentum and self.optimizer not in ("sgd", "muon", "rmsprop"):
            raise SpecError(f"momentum must be 0 for {self.optimizer}, got {self.momentum:g}; use betas")
        if self.nesterov and (not self.momentum or self.optimizer not in ("sgd", "muon")):
            why = f"for {self.optimizer}" if self.momentum else "without momentum"
            raise SpecError(f"nesterov must be false {why}, got true; it is a kind of momentum of sgd and muon")
        if len(self.betas) != 2:
            raise SpecError(f"betas must be two numbers, got {list(self.betas)}; for example [0.9, 0.999]")


@dataclass(frozen=True, kw_only=True)
class Transform(Kind):
    """One link of the chain a gradient goes through; the names of the library's transforms."""


@dataclass(frozen=True, kw_only=True)
class Polar(Transform, kind="polar"):
    """U Vᵀ."""

    precision: Literal["auto", "exact", "fast"] = setting("auto")
    """Fast: to 1e-2 for directions above 1e-3 of the largest, weaker ones come out weaker (`egalitarian.polar`). Auto: fast
    where training is in float32 on a GPU, else exact; which it was stands in the run's environment."""


@dataclass(frozen=True, kw_only=True)
class LowRankPolar(Transform, kind="lowrank-polar"):
    """The leading directions, by a randomized SVD."""

    rank: int = setting(least=1)
    iterations: int = setting(2, least=1)
    oversample: int = setting(0, least=0)
    fixed: bool = setting(False)
    """One sketch for all steps, as in the authors' JAX code, instead of a new one for each."""
    share: float | None = setting(None, above=0, most=1)
    """An adaptive rank: the smallest, at most `rank`, that keeps this share of the squared singular values."""
    cap: bool = setting(False)
    """Whether a matrix with fewer directions than `rank` takes all it has, instead of being refused."""


@dataclass(frozen=True, kw_only=True)
class RowNorm(Transform, kind="row-norm"):
    """Each row of the gradient, one output unit's, over its norm: the paper's column norm."""

    floor: float = setting(above=0)


@dataclass(frozen=True, kw_only=True)
class Natural(Transform, kind="natural"):
    """U S⁻¹ Vᵀ."""


@dataclass(frozen=True, kw_only=True)
class Momentum(Transform, kind="momentum"):
    """A running mean in front of what follows: with `polar` behind it, Muon's order with an exact factor."""

    beta: float = setting(0.95, least=0, below=1)
    nesterov: bool = setting(False)


@dataclass(frozen=True, kw_only=True)
class GrokfastEMA(Transform, kind="grokfast-ema"):
    """Adds lamb times the running mean."""

    alpha: float = setting(least=0, below=1)
    lamb: float = setting(least=0)


@dataclass(frozen=True, kw_only=True)
class GrokfastMA(Transform, kind="grokfast-ma"):
    """Adds lamb times the mean of the last gradients."""

    window: int = setting(least=1)
    lamb: float = setting(least=0)


OF_ALL = (Momentum, GrokfastEMA, GrokfastMA)
"""Transforms of every parameter, not of the target matrices alone."""


@dataclass(frozen=True, kw_only=True)
class Method(Settings):
    """How the weights move: optimizers, transforms, where weight decay enters, when the transforms are switched off."""

    title: str = setting(meaning=False)
    optim: Optim
    """For every parameter."""
    hidden: Optim | None = None
    """For the target matrices, where it differs."""
    groups: Mapping[str, Optim] = field(default_factory=dict)
    """For the parameters of one module, where these differ again: by the module's name, as in `groups.output.lr`."""
    transform: tuple[Transform, ...] = ()
    targets: tuple[str, ...] = ("hidden.weight",)
    """The matrices that are equalised: names or patterns."""
    decay: Literal["before", "after", "decoupled"] = "before"
    """Where weight decay enters: before the transforms, in the gradient; after them, by the optimizer; or decoupled,
    shrinking the weights by lr * weight_decay."""
    until: float | None = setting(None, above=0, below=1)
    """Test accuracy past which the transforms are off, as the authors do it; None: never."""
    decayed: Literal["matrices", "all"] = "matrices"
    """Which parameters weight decay acts on: weight matrices, or biases, norms and embeddings, too."""
    epochs: int = setting(least=1, meaning=False)
    """The budget of a seed that does not pass the threshold."""
    by_default: bool = setting(True, meaning=False)
    """Whether `egalitarian run` trains it when no method is named."""

    def __post_init__(self) -> None:
        super().__post_init__()
        hidden = self.hidden or self.optim
        if self.optim.optimizer == "muon":
            raise SpecError("optim.optimizer must work for every parameter, got 'muon'; put it into [hidden]")
        if hidden.optimizer == "muon" and self.transform:
            raise SpecError(
                "transform must be empty with muon on the hidden matrix, got some; remove them: Muon equalises by itself"
            )
        if hidden.optimizer != self.optim.optimizer and any(isinstance(link, OF_ALL) for link in self.transform):
            raise SpecError(
                f"hidden.optimizer must be {self.optim.optimizer!r} with a transform of every parameter (momentum, "
                f"grokfast), got {hidden.optimizer!r}; use one optimizer, or transforms of the targets alone"
            )
        for name, own in self.groups.items():
            if own.optimizer not in (self.optim.optimizer, hidden.optimizer):
                kinds = " or ".join(dict.fromkeys(repr(each.optimizer) for each in (self.optim, hidden)))
                raise SpecError(f"groups.{name}.optimizer must be {kinds}, got {own.optimizer!r}; leave it out")
        for optim in (self.optim, hidden, *self.groups.values()):
            if self.decay == "decoupled" and optim.weight_decay and optim.optimizer not in ("sgd", "adamw", "muon"):
                raise SpecError(f"decay must be 'after' or 'before' with {optim.optimizer}, got 'decoupled'; or use adamw")
            if self.decay == "decoupled" and optim.weight_decay and optim.optimizer == "sgd" and optim.momentum:
                raise SpecError("decay must be 'after' or 'before' for sgd with momentum, got 'decoupled'; or use adamw")
            if self.decay != "decoupled" and optim.weight_decay and optim.optimizer in ("adamw", "muon"):
                raise SpecError(
                    f"decay must be 'decoupled' with {optim.optimizer}, got {self.decay!r}; it has no other form"
                )
        if self.until is not None and not self.transform:
            raise SpecError(
                f"until must be absent without a transform, got {self.until:g}; remove it: there is nothing to switch off"
            )


@dataclass(frozen=True, kw_only=True)
class Claim(Settings):
    """What the paper says of one method on one experiment."""

    table: str
    """Where it says so."""
    epochs: int | Literal["never"] | None = setting(None, least=0)
    """To the threshold."""
    steps: int | None = setting(None, least=0)
    """The same, where the paper counts steps."""
    seconds: float | None = setting(None, above=0)
    ms_per_epoch: float | None = setting(None, above=0)
    ms_per_step: float | None = setting(None, above=0)
    final_accuracy: float | None = setting(None, least=0, most=1)
    """Test accuracy at the end of a full-length run."""
    mean_train_accuracy: float | None = setting(None, least=0, most=1)
    """Over all epochs."""
    erratum: str = ""
    """Heading in docs/errata.md, where the claim is known not to reproduce."""


@dataclass(frozen=True, kw_only=True)
class Experiment(Settings):
    """All of one experiment of the paper, or of a user's."""

    name: str = setting(meaning=False)
    title: str = setting(meaning=False)
    task: Task
    model: Model
    training: Training
    measure: Measure
    methods: Mapping[str, Method] = field(default_factory=dict)
    claims: Mapping[str, Claim] = field(default_factory=dict, metadata={"meaning": False})
    """By method."""
    sources: Mapping[str, str] = field(default_factory=dict, metadata={"meaning": False})
    """Where each setting comes from, by dotted key; a key stands for all below it that have none of their own."""
    about: str = setting("", meaning=False)
    changes: tuple[str, ...] = setting((), meaning=False)
    """What `--set` changed."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for what, name in (("name", self.name), *(("methods", method) for method in self.methods)):
            if not re.fullmatch(r"\w[\w.+-]*", name, re.ASCII) or name == "all":
                raise SpecError(
                    f"{what} must be letters, digits, '-', '_', '+' and '.', got {name!r}; it becomes a folder's name"
                )
        if not self.methods:
            raise SpecError(
                "methods must hold at least one, got none; add [methods.sgd], or extend an experiment that has some"
            )

    @property
    def heading(self) -> str:
        """The title, and what is different from what it says."""
        return f"{self.title}, with {', '.join(self.changes)}" if self.changes else self.title

    @property
    def has_final(self) -> bool:
        """Whether the paper says where runs of full length end."""
        return any(claim.final_accuracy is not None for claim in self.claims.values())

    @property
    def steps_per_epoch(self) -> int | None:
        """None: the task does not say how many training points it has."""
        points = getattr(self.task, "train_size", None)
        return None if points is None else self.training.batches(points) * self.training.passes

    def source(self, key: str) -> str:
        """Where the setting with this dotted key comes from."""
        while key not in self.sources and "." in key:
            key = key.rpartition(".")[0]
        return self.sources.get(key, "")

    @property
    def usual(self) -> list[str]:
        """The methods that are trained unless others are named."""
        return [name for name, method in self.methods.items() if method.by_default]

    def method(self, name: str) -> Method:
        if name not in self.methods:
            hint = nearest(name, self.methods, renamed.METHODS) or f"one of {', '.join(self.methods)}"
            raise SpecError(f"method must be one of experiment {self.name!r}, got {name!r}; {hint}")
        return self.methods[name]


@dataclass(frozen=True)
class Run:
    """One experiment, one method, one seed: the unit of everything that is stored."""

    experiment: Experiment
    method_name: str
    seed: int

    @property
    def method(self) -> Method:
        return self.experiment.method(self.method_name)

    @property
    def mathematics(self) -> dict[str, Any]:
        """All that decides the numbers: what two runs must share to be the same run. In old spellings, as ids are."""
        parts = {part: meaning(getattr(self.experiment, part)) for part in ("task", "model", "training")}
        return {"version": VERSION, **parts, "method": renamed.as_hashed(meaning(self.method)), "seed": self.seed}

    @property
    def id(self) -> str:
        text = json.dumps(self.mathematics, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()[:12]

    def describe(self) -> dict[str, Any]:
        """The whole of it, for people and for later."""
        parts = {part: everything(getattr(self.experiment, part)) for part in ("task", "model", "training", "measure")}
        names = {"experiment": self.experiment.name, "method": self.method_name, "seed": self.seed}
        return {"id": self.id, "version": VERSION, **names, **parts, "settings": everything(self.method)}
