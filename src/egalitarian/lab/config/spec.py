"""An experiment as a frozen value: task, model, training, measure, claims, the source of each number; and a run of it.

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
from egalitarian.lab.config.method import FilterSettings, Method, auto_tier
from egalitarian.lab.config.schema import Kind, Settings, SpecError, everything, meaning, nearest, setting

VERSION = 2
"""Part of a run's id. Raise it whenever the same settings give other results than before.

Version 2: the tier of the polar factor is part of the settings, and fast promises 1e-3 where it promised 1e-2. Muon takes
the matrices of all seeds together, which changes roundings on a GPU.
"""
OLD_VERSION = 1
"""The version before. It stays that of methods with neither a polar factor nor Muon, which version 2 does not concern."""
OLD_FAST = "fast to 1e-2"
"""What version 1 computed as `fast`."""
MOST_WAVES = 256
"""The largest group with Fourier measures: they hold the logits of all pairs, which are its cube."""
DEVICES = ("cpu", "cuda")
"""Types of devices that train runs."""

Loss = Literal["cross-entropy", "stablemax-cross-entropy", "squared-error", "one-hot-squared-error", "hinge"]


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
    passes: int = setting(1, least=1, most=10_000)
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

    reset: bool = setting(False)
    """Whether the optimizers' state starts again from nothing where the training labels change."""

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
    fourier: Literal["off", "epochs", "snapshots"] = setting("off", meaning=False)
    """When the Fourier measures of modular arithmetic are read: never, at every epoch, or in snapshots. They are the power
    of each frequency in the first weight and its concentration, excluded and restricted loss, and the logits' scale."""
    key_frequencies: int = setting(5, least=1, meaning=False)
    """How many frequencies excluded and restricted loss are about: those that are strongest in the logits at that epoch."""

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
        for name, method in self.methods.items():
            if self.training.reset and any(isinstance(link, FilterSettings) for link in method.transform):
                raise SpecError(
                    f"training.reset must be false where a transform keeps a memory, got true for {name}; choose other "
                    f"methods, or momentum of the optimizer"
                )
        if self.measure.fourier != "off":
            self._check_fourier()

    def _check_fourier(self) -> None:
        """Fourier measures are of a task in a group, with enough frequencies and not too many pairs."""
        group, asked = getattr(self.task, "group", None), self.measure.key_frequencies
        if group is None:
            raise SpecError(
                f"measure.fourier must be 'off' for task {self.task.kind!r} as it is set, got {self.measure.fourier!r}; "
                f"waves need + or - with any modulus, or * or / with a prime above 2"
            )
        if group.size > MOST_WAVES:
            raise SpecError(
                f"measure.fourier must be 'off' for more than {MOST_WAVES} numbers, got {group.size}; lower task.modulus"
            )
        if asked > group.frequencies:
            raise SpecError(
                f"measure.key_frequencies must be at most {group.frequencies}, got {asked}; a group of {group.size} has no "
                f"more frequencies"
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
        concerned = self.method.tiers or self.method.has("muon")
        return VERSION if concerned and not self.old else OLD_VERSION

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


def of_any_version(experiment: Experiment, method: str, seed: int) -> list[Run]:
    """The runs that these settings mean, and the one that version 1 stored by them. Reports count no others."""
    runs = either(experiment, method, seed)
    return runs + [run.before for run in runs[:1] if run.before is not None]
