"""Several seeds as one network: data, parameters and batches with a leading axis of seeds.

A seed has its own split, start and order of batches, each from its own random stream, so the other seeds do not change it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

from egalitarian.lab.config import Experiment, SpecError
from egalitarian.lab.problems import Model, Split, Task, stream
from egalitarian.lab.training.metrics import LOSSES, evaluate, is_correct

AT_ONCE = {"cpu": 2}
"""Seeds whose networks are computed in one call, by device; elsewhere all of them."""


class Minibatch(NamedTuple):
    """What one step learns from: inputs and labels, (seeds, points, ...) each, and dropout masks if the model has some."""

    inputs: Tensor
    labels: Tensor
    masks: Tensor | None = None


class Turn(NamedTuple):
    """What is drawn for one epoch, or for several that share a pass over the data."""

    number: int
    batches: list[Tensor]
    """The points of each batch, (seeds, batch), as indices into the stacked data."""
    masks: Tensor | None
    """The dropout masks of each point, (seeds, points, ...), on the CPU."""


class Part(NamedTuple):
    """Some of the seeds: their parameters, as leaves that view the stack, and views of the stack's gradients."""

    seeds: slice
    parameters: dict[str, Tensor]
    gradients: list[Tensor]

    @staticmethod
    def of(parameters: Mapping[str, Tensor], seeds: slice) -> Part:
        leaves = {name: parameter.detach()[seeds].requires_grad_() for name, parameter in parameters.items()}
        gradients = [parameter.grad[seeds] for parameter in parameters.values() if parameter.grad is not None]
        return Part(seeds, leaves, gradients)


class Ensemble:
    """The networks of several seeds of one experiment, and their data, on one device."""

    def __init__(self, experiment: Experiment, seeds: Sequence[int], device: torch.device) -> None:
        assert isinstance(experiment.task, Task)
        assert isinstance(experiment.model, Model)
        self.seeds, self.device = tuple(seeds), device
        self._training, self._model = experiment.training, experiment.model
        self._dtype: torch.dtype = getattr(torch, experiment.training.precision)
        data = [experiment.task.build(seed) for seed in seeds]
        parts = [self._hold_out(each.test, seed) for each, seed in zip(data, seeds, strict=True)]
        self.train = self._stack_splits([each.train for each in data])
        self.test = self._stack_splits([test for test, _ in parts])
        self.validation = self._stack_splits([held_out for _, held_out in parts]) if self._training.validation else None
        self._task, self._era, self._labels = experiment.task, 0, [each.train.labels for each in data]
        if self.batches < 1:
            raise SpecError(
                f"training.batch must be at most the {self.points} training points, got {self._training.batch}; lower it"
            )
        self.steps = self._training.steps(self.points)
        """Steps per epoch."""
        starts = [self._model.start(experiment.task, seed) for seed in seeds]
        self.start = {name: self._stack([start[name] for start in starts]) for name in starts[0]}
        self.parameters = {name: tensor.clone().requires_grad_() for name, tensor in self.start.items()}
        self._turn = Turn(-1, [], None)
        self._masked = 0
        """The pass whose dropout masks lie where `take` reads them."""
        masks = self._draw_masks(self._masked)
        if masks is not None and self._training.passes > 1:
            raise SpecError(
                f"training.passes must be 1 with dropout, got {self._training.passes}; a point has one mask in an epoch"
            )
        self._masks = None if masks is None else masks.to(device)
        self.loss = LOSSES[experiment.training.loss]
        self._during = torch.zeros(3, len(seeds), dtype=torch.float64, device=device)

    @property
    def precision(self) -> torch.dtype:
        return self._dtype

    @property
    def points(self) -> int:
        return self.train.labels.shape[1]

    @property
    def batch(self) -> int:
        """Points in a complete batch."""
        return min(self._training.batch, self.points)

    @property
    def batches(self) -> int:
        """Steps per pass over the data."""
        return self._training.batches(self.points)

    def forward(self, inputs: Tensor) -> Tensor:
        """Outputs, (seeds, points, outputs)."""
        return self._model.forward(self.parameters, inputs)

    @property
    def reading(self) -> Tensor | None:
        """The weights that read one-hot inputs, (seeds, out, features); None if the model has none."""
        return self._model.reading(self.parameters)

    def backward(self, batch: Minibatch) -> None:
        """Fills every parameter's gradient with that of each network's mean loss on its own batch."""
        for part in self._parts:
            outputs = self._outputs(part, batch)
            labels = batch.labels[part.seeds]
            loss = self.loss(outputs, labels)
            grads = torch.autograd.grad(loss.sum(), list(part.parameters.values()))
            for own, grad in zip(part.gradients, grads, strict=True):
                own.copy_(grad)
            if self._training.accuracy == "during":
                points = torch.full_like(loss, labels.shape[1])
                self._during[:, part.seeds] += torch.stack(
                    [points * loss.detach(), is_correct(outputs, labels).sum(1), points]
                )

    def _outputs(self, part: Part, batch: Minibatch) -> Tensor:
        inputs = batch.inputs[part.seeds]
        if batch.masks is None:
            return self._model.forward(part.parameters, inputs)
        return self._model.forward_masked(part.parameters, inputs, batch.masks[part.seeds])

    def learnt(self) -> tuple[Tensor, Tensor]:
        """Training loss and accuracy, (seeds,) each: on all points now, or on this epoch's batches so far."""
        if self._training.accuracy == "after":
            return evaluate(self.forward, self.loss, *self.train)
        loss, correct, points = self._during
        return loss / points, correct / points

    @cached_property
    def _parts(self) -> list[Part]:
        """All seeds in one part on a GPU; on a CPU as many as fit into its cache."""
        for parameter in self.parameters.values():
            parameter.grad = torch.empty_like(parameter)
        size = AT_ONCE.get(self.device.type, len(self.seeds))
        return [Part.of(self.parameters, slice(start, start + size)) for start in range(0, len(self.seeds), size)]

    def begin(self, number: int) -> None:
        """Before an epoch: resets the counts, and changes dropout masks, and labels if the task does so, in place."""
        if self._training.accuracy == "during":
            self._during.zero_()
        self._mask(number)
        era = self._task.era(number // self._training.readings)
        if era != self._era:
            both = zip(self._labels, self.seeds, strict=True)
            labels = torch.stack([self._task.relabelled(own, seed, era) for own, seed in both])
            self.train.labels.copy_(labels)
            self._era = era

    def resets(self, number: int) -> bool:
        """Whether the optimizers' state starts again before this epoch, since it is the first with other labels."""
        pass_, part = divmod(number, self._training.readings)
        is_later = pass_ > 0 and part == 0
        return self._training.reset and is_later and self._task.era(pass_) != self._task.era(pass_ - 1)

    def epoch(self, number: int) -> list[Minibatch]:
        """The batches of one epoch. The order of a seed's points depends on the seed and the epoch alone."""
        self._mask(number)
        return [self.take(chosen) for chosen in self.choices(number)]

    def choices(self, number: int) -> list[Tensor]:
        """The points of each batch of an epoch, (seeds, batch) each, as indices into the stacked data."""
        turn, part = divmod(number, self._training.readings)
        return self._drawn(turn).batches[part * self.steps : (part + 1) * self.steps]

    def _drawn(self, turn: int) -> Turn:
        if turn != self._turn.number:
            self._turn = Turn(turn, self._batches_of(turn), self._draw_masks(turn))
        return self._turn

    def _batches_of(self, turn: int) -> list[Tensor]:
        """The points of each batch of some passes: those of one epoch, or the one pass of several epochs."""
        passes = range(turn * self._training.passes, (turn + 1) * self._training.passes)
        orders = [torch.stack([self._order(seed, each) for seed in self.seeds]) for each in passes]
        indices = torch.stack(orders).to(self.device) + self._offsets
        return [chosen for order in indices for chosen in torch.split(order, self._training.batch, 1)[: self.batches]]

    def _order(self, seed: int, turn: int) -> Tensor:
        return torch.randperm(self.points, generator=stream(seed, "batches", turn))

    def _mask(self, number: int) -> None:
        """Puts an epoch's dropout masks where `take` reads them, a captured one too."""
        turn = number // self._training.readings
        if self._masks is not None and turn != self._masked:
            masks = self._drawn(turn).masks
            assert masks is not None
            self._masks.copy_(masks)
            self._masked = turn

    def _draw_masks(self, turn: int) -> Tensor | None:
        """Those of one pass; a seed's depend on the seed and the pass alone."""
        drawn = [self._model.masks(self.points, stream(seed, "dropout", turn)) for seed in self.seeds]
        found = [masks for masks in drawn if masks is not None]
        return torch.stack(found) if found else None

    def take(self, chosen: Tensor) -> Minibatch:
        """The points at these indices, with the dropout masks of the epoch that has begun."""
        flat = chosen.flatten()
        inputs = self.train.inputs
        if inputs.stride(0):
            taken = inputs.flatten(0, 1).index_select(0, flat)
        else:  # all seeds share one set of points
            taken = inputs[0].index_select(0, (chosen - self._offsets).flatten())
        labels = self.train.labels.flatten(0, 1).index_select(0, flat)
        masks = self._masks
        if masks is not None:
            masks = masks.flatten(0, 1).index_select(0, flat).reshape(*chosen.shape, *masks.shape[2:])
        return Minibatch(taken.reshape(*chosen.shape, *inputs.shape[2:]), labels.reshape(chosen.shape), masks)

    @cached_property
    def _offsets(self) -> Tensor:
        return torch.arange(len(self.seeds), device=self.device)[:, None] * self.points

    def _hold_out(self, test: Split, seed: int) -> tuple[Split, Split]:
        """(test points, validation points), drawn by the seed."""
        share, points = self._training.validation, len(test.labels)
        if not share:
            return test, Split(test.inputs[:0], test.labels[:0])
        count = round(share * points)
        if not 0 < count < points:
            raise SpecError(
                f"training.validation must leave some of the {points} test points on both sides, got {share:g}; try 0.5"
            )
        order = torch.randperm(len(test.labels), generator=stream(seed, "validation"))
        first, rest = order[:count], order[count:]
        return Split(test.inputs[rest], test.labels[rest]), Split(test.inputs[first], test.labels[first])

    def _stack_splits(self, splits: Sequence[Split]) -> Split:
        inputs = [split.inputs for split in splits]
        labels = self._stack([split.labels for split in splits])
        if all(each is inputs[0] for each in inputs):  # stored once for all seeds
            return Split(self._stack(inputs[:1]).expand(len(inputs), *inputs[0].shape), labels)
        return Split(self._stack(inputs), labels)

    def _stack(self, tensors: list[Tensor]) -> Tensor:
        """Stacked, on the device, in the experiment's precision and the memory layout of the single tensors."""
        first = tensors[0]
        transposed = first.ndim == 2 and not first.is_contiguous()
        stack = torch.stack([tensor.mT for tensor in tensors]).mT if transposed else torch.stack(tensors)
        return stack.to(self.device, self._dtype if first.is_floating_point() else None)
