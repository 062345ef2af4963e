"""An experiment as a frozen value: task, model, training, methods, measure, claims, and the source of each number.

Tasks and models define their own settings, in `lab/problems` or in a user's file. `catalog.py` reads them from TOML.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal

from egalitarian.lab.config import renamed
from egalitarian.lab.config.schema import Kind, Settings, SpecError, everything, meaning, nearest, setting

VERSION = 2
"""Part of a run's id. Raise it whenever the same settings give other results than before.

Version 2: the tier of the polar factor is part of the settings, and fast promises 1e-3 where it promised 1e-2.
"""
OLD_VERSION = 1
"""The version before. It stays that of methods without a polar factor, which version 2 does not concern."""
OLD_FAST = "fast to 1e-2"
"""What version 1 computed as `fast`."""
DEVICES = ("cpu", "cuda")
"""Types of devices that train runs."""
Tier = Literal["exact", "fast", "coarse"]

LARGEST = 1e30
"""No number of an optimizer or a transform is larger: float32 ends at 3.4e38, and steps multiply them."""
Loss = Literal["cross-entropy", "squared-error", "one-hot-squared-error", "hinge"]


def _refuse_huge(numbers: Mapping[str, Any]) -> None:
    """Torch's own error for a number beyond float32 names none."""
    for what, number in numbers.items():
        if isinstance(number, float) and abs(number) > LARGEST:
            raise SpecError(f"{what} must be at most {LARGEST:g}, got {number:g}; lower it: float32 ends at 3.4e38")


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
    """One link of a chain of gradient transforms. Kinds have the names of the library's transforms."""

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
class MomentumSettings(TransformSettings, kind="momentum"):
    """A running mean before the next transform: followed by `polar`, Muon's order with an exact factor."""

    beta: float = setting(0.95, least=0, below=1)
    nesterov: bool = setting(False)


@dataclass(frozen=True, kw_only=True)
class GrokfastEMASettings(TransformSettings, kind="grokfast-ema"):
    """Adds lamb times the running mean."""

    alpha: float = setting(least=0, below=1)
    lamb: float = setting(least=0)


@dataclass(frozen=True, kw_only=True)
class GrokfastMASettings(TransformSettings, kind="grokfast-ma"):
    """Adds lamb times the mean of the last gradients."""

    window: int = setting(least=1)
    lamb: float = setting(least=0)


def auto_tier(device: str, precision: str) -> Tier:
    """The tier that `auto` means on a type of device, in float32 or float64."""
    return "fast" if device == "cuda" and precision == "float32" else "exact"


ON_ALL_PARAMETERS = (MomentumSettings, GrokfastEMASettings, GrokfastMASettings)
"""Transforms of every parameter, not of the target matrices alone."""


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
    """The matrices that are equalised: names or patterns."""
    decay: Literal["before", "after", "decoupled"] = "before"
    """Where weight decay enters: before the transforms, in the gradient; after them, by the optimizer; or decoupled,
    shrinking the weights by lr * weight_decay."""
    until: float | None = setting(None, above=0, below=1)
    """Test accuracy past which the transforms are off, as in the authors' code; None: never."""
    decayed: Literal["matrices", "all"] = "matrices"
    """Which parameters weight decay acts on: weight matrices only, or biases, norms and embeddings as well."""
    epochs: int = setting(least=1, meaning=False)
    """The budget of a seed that does not pass the threshold."""
    by_default: bool = setting(True, meaning=False)
    """Whether `egalitarian run` trains it when no method is named."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check_optimizers()
        for optim in (self.optim, self.hidden or self.optim, *self.groups.values()):
            if optim.weight_decay:
                self._check_decay(optim)
        if self.until is not None and not self.transform:
            raise SpecError(
                f"until must be absent without a transform, got {self.until:g}; remove it: there is nothing to switch off"
            )

    @property
    def tiers(self) -> tuple[str, ...]:
        """The precision of each polar factor in the chain of transforms, `auto` among them."""
        return tuple(link.precision for link in self.transform if isinstance(link, PolarSettings))

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
        if hidden.optimizer != self.optim.optimizer and any(isinstance(link, ON_ALL_PARAMETERS) for link in self.transform):
            raise SpecError(
                f"hidden.optimizer must be {self.optim.optimizer!r} with a transform of every parameter (momentum, "
                f"grokfast), got {hidden.optimizer!r}; use one optimizer, or transforms of the targets alone"
            )
        for name, own in self.groups.items():
            if own.optimizer not in (self.optim.optimizer, hidden.optimizer):
                kinds = " or ".join(dict.fromkeys(repr(each.optimizer) for each in (self.optim, hidden)))
                raise SpecError(f"groups.{name}.optimizer must be {kinds}, got {own.optimizer!r}; leave it out")

    def _check_decay(self, optim: Optim) -> None:
        """Which optimizers can decay the weights in this method's form."""
        name = optim.optimizer
        if self.decay == "decoupled" and name not in ("sgd", "adamw", "muon"):
            raise SpecError(f"decay must be 'after' or 'before' with {name}, got 'decoupled'; or use adamw")
        if self.decay == "decoupled" and name == "sgd" and optim.momentum:
            raise SpecError("decay must be 'after' or 'before' for sgd with momentum, got 'decoupled'; or use adamw")
        if self.decay != "decoupled" and name in ("adamw", "muon"):
            raise SpecError(f"decay must be 'decoupled' with {name}, got {self.decay!r}; it has no other form")


@dataclass(frozen=True, kw_only=True)
class TaskSettings(Kind):
    """What is to be learnt. Every kind of task is a subclass of `lab.problems.Task`, which adds `build`."""

    code: str = setting("")
    """The digest of the file of a user's own task."""


@dataclass(frozen=True, kw_only=True)
class ModelSettings(Kind):
    """What learns it. Every kind of model is a subclass of `lab.problems.Model`, which adds `start` and `one`."""


@dataclass(frozen=True, kw_only=True)
class Training(Settings):
    """Loss, batches and precision."""

    loss: Loss
    batch: int = setting(least=1)
    drop_last: bool = setting(True)
    """Whether an epoch's last, incomplete batch is left out."""
    precision: Literal["float32", "float64"] = setting("float32")
    passes: int = setting(1, least=1)
    """Passes over the data in one epoch. Everything is measured at the end of an epoch: more passes measure less often."""
    readings: int = setting(1, least=1)
    """Epochs that one pass over the data is divided into, all with as many steps: more readings measure more often."""
    warmup: int = setting(0, least=0)
    """Steps over which the learning rates rise linearly from 0."""
    validation: float = setting(0.0, least=0, below=1)
    """The share of the test points that is held out for the switch-off; test accuracy leaves it out."""
    accuracy: Literal["after", "during"] = setting("after")
    """When training loss and accuracy are read. After: of all points, at the end of an epoch. During: of every batch before
    its step, as training programs print them."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.readings > 1 and self.passes > 1:
            raise SpecError(
                f"training.readings must be 1 where an epoch has several passes, got {self.readings} and "
                f"{self.passes} passes; set training.passes to 1"
            )

    def batches(self, points: int) -> int:
        """Steps of one pass over so many training points."""
        whole, rest = divmod(points, self.batch)
        return whole + (rest > 0 and not self.drop_last)

    def steps(self, points: int) -> int:
        """Steps of one epoch with so many training points."""
        batches = self.batches(points)
        if batches % self.readings:
            raise SpecError(
                f"training.readings must divide the {batches} steps of a pass, got {self.readings}; "
                "every epoch has as many steps"
            )
        return batches * self.passes // self.readings


@dataclass(frozen=True, kw_only=True)
class Measure(Settings):
    """When a run counts as having grokked. This does not change a run, only what is read from it."""

    threshold: float = setting(above=0, most=1, meaning=False)
    """Test accuracy that must be exceeded, read at the end of every epoch; epochs count from 0. With 1, which is never
    exceeded, a run trains for its whole budget."""
    past: int = setting(5, least=0, meaning=False)
    """How many epochs a run continues after that."""
    spectra: Literal["auto", "epochs", "snapshots"] = setting("auto", meaning=False)
    """When the gradient's singular values are read: at every epoch, or in snapshots, at ten epochs per factor of ten. A
    GPU needs longer for them than for the epoch, so auto means snapshots there and epochs elsewhere."""

    @property
    def has_threshold(self) -> bool:
        """Whether a run ends when its test accuracy passes the threshold; if not, it trains for its whole budget."""
        return self.threshold < 1


@dataclass(frozen=True, kw_only=True)
class Claim(Settings):
    """The paper's numbers for one method on one experiment."""

    table: str
    """Where the paper prints them."""
    epochs: int | Literal["never"] | None = setting(None, least=0)
    """To the threshold."""
    steps: int | None = setting(None, least=0)
    """To the threshold, where the paper counts steps."""
    seconds: float | None = setting(None, above=0)
    ms_per_epoch: float | None = setting(None, above=0)
    ms_per_step: float | None = setting(None, above=0)
    final_accuracy: float | None = setting(None, least=0, most=1)
    """Test accuracy at the end of a full-length run."""
    mean_train_accuracy: float | None = setting(None, least=0, most=1)
    """The mean over all epochs."""
    erratum: str = ""
    """The heading in docs/errata.md, if the claim is known not to reproduce."""


@dataclass(frozen=True, kw_only=True)
class Experiment(Settings):
    """One experiment, of the paper or of a user."""

    name: str = setting(meaning=False)
    title: str = setting(meaning=False)
    task: TaskSettings
    model: ModelSettings
    training: Training
    measure: Measure
    methods: Mapping[str, Method] = field(default_factory=dict)
    claims: Mapping[str, Claim] = field(default_factory=dict, metadata={"meaning": False})
    """By method."""
    sources: Mapping[str, str] = field(default_factory=dict, metadata={"meaning": False})
    """Where each setting comes from, by dotted key. A key covers everything below it that has no source of its own."""
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
        """The title, with the changes made by `--set`."""
        return f"{self.title}, with {', '.join(self.changes)}" if self.changes else self.title

    @property
    def has_final(self) -> bool:
        """Whether the paper gives final accuracies of full-length runs."""
        return any(claim.final_accuracy is not None for claim in self.claims.values())

    @property
    def steps_per_epoch(self) -> int | None:
        """None if the task does not define its number of training points."""
        points = getattr(self.task, "train_size", None)
        return None if points is None else self.training.steps(points)

    def source(self, key: str) -> str:
        """Where the setting with this dotted key comes from."""
        while key not in self.sources and "." in key:
            key = key.rpartition(".")[0]
        return self.sources.get(key, "")

    @property
    def usual(self) -> list[str]:
        """The methods that are trained when none is named."""
        return [name for name, method in self.methods.items() if method.by_default]

    def method(self, name: str) -> Method:
        if name not in self.methods:
            hint = nearest(name, self.methods, renamed.METHODS) or f"one of {', '.join(self.methods)}"
            raise SpecError(f"method must be one of experiment {self.name!r}, got {name!r}; {hint}")
        return self.methods[name]


@dataclass(frozen=True)
class Run:
    """One experiment, one method, one seed: the unit of storage."""

    experiment: Experiment
    method_name: str
    seed: int
    device: str = ""
    """The type of the device that trains it. It decides which tier `auto` means, and nothing else."""
    old: bool = False
    """Whether it is the run that version 1 stored by these settings: to be read, and never to be continued."""

    def __post_init__(self) -> None:
        if self.device not in ("", *DEVICES):
            raise SpecError(f"device must be one of {', '.join(DEVICES)}, got {self.device!r}; leave out its number")
        if not (self.device or self.old) and "auto" in self.experiment.method(self.method_name).tiers:
            raise SpecError(
                f"device must be given where a method's polar factor has precision 'auto', got none for "
                f"{self.method_name}; on 'cuda' it may be another run than on 'cpu'"
            )

    @cached_property
    def method(self) -> Method:
        """With the tier that it takes on the device."""
        method = self.experiment.method(self.method_name)
        return method if self.old else method.with_tier(auto_tier(self.device, self.experiment.training.precision))

    @property
    def version(self) -> int:
        """Of its results."""
        return VERSION if self.method.tiers and not self.old else OLD_VERSION

    @property
    def before(self) -> Run | None:
        """The run that version 1 stored by the same settings; None if it is this one."""
        return None if self.version == OLD_VERSION else replace(self, device="", old=True)

    @property
    def mathematics(self) -> dict[str, Any]:
        """Everything that determines the results, in the old spellings that ids are made of. Equal means: the same run."""
        parts = {part: meaning(getattr(self.experiment, part)) for part in ("task", "model", "training")}
        assert self.old or "auto" not in self.method.tiers
        return {"version": self.version, **parts, "method": renamed.as_hashed(meaning(self.method)), "seed": self.seed}

    @property
    def id(self) -> str:
        text = json.dumps(self.mathematics, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()[:12]

    def describe(self) -> dict[str, Any]:
        """All settings as plain values, as stored in spec.json."""
        parts = {part: everything(getattr(self.experiment, part)) for part in ("task", "model", "training", "measure")}
        names = {"experiment": self.experiment.name, "method": self.method_name, "seed": self.seed}
        return {"id": self.id, "version": self.version, **names, **parts, "settings": everything(self.method)}


def either(experiment: Experiment, method: str, seed: int) -> list[Run]:
    """The runs that these settings mean on a CPU and on a GPU: two where the tiers differ, else one."""
    on_cpu, on_gpu = (Run(experiment, method, seed, device) for device in DEVICES)
    return [on_cpu] if on_cpu.method == on_gpu.method else [on_cpu, on_gpu]
