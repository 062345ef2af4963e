"""Fourier measures of a network that learns modular arithmetic: power, its concentration, excluded and restricted loss.

After Nanda et al. 2023, "Progress measures for grokking via mechanistic interpretability" (arXiv:2301.05217). Theirs is
addition. Here waves run over the logarithms of the task's group, which for addition are the numbers themselves.

A table of logits has the logits for every pair of the group: (seeds, size, size, outputs), both numbers by logarithm.
Output c is the logit of the number c. Every function takes all seeds at once and never mixes them.
"""

from __future__ import annotations

import torch
from torch import Tensor

from egalitarian.lab.config import FOURIER, Experiment, SpecError, is_snapshot
from egalitarian.lab.problems import Group, Modular
from egalitarian.lab.training.ensemble import Ensemble
from egalitarian.lab.training.metrics import CHUNK, LossFunction, cross_entropy

NOISE = 1e-26
"""Power below this share of the constant's is rounding of the transform."""


class Fourier:
    """The Fourier measures of an ensemble, at the epochs that its experiment asks for."""

    def __init__(self, experiment: Experiment, ensemble: Ensemble) -> None:
        task, got = experiment.task, repr(experiment.measure.fourier)
        if not isinstance(task, Modular) or task.group is None:
            raise SpecError(
                f"measure.fourier must be 'off' for task {task.kind!r}, got {got}; make it a subclass of Modular"
            )
        if ensemble.reading is None:
            raise SpecError(
                f"measure.fourier must be 'off' for model {experiment.model.kind!r}, got {got}; override `reading` to say "
                f"which weights read one-hot inputs"
            )
        self._ensemble, self._measure, self._group = ensemble, experiment.measure, task.group
        pairs = torch.cartesian_prod(self._group.elements, self._group.elements)
        inputs = task.encode(*pairs.unbind(1))
        if not torch.equal(torch.stack(task.decode(inputs), 1), pairs):
            raise SpecError(
                f"decode of task {task.kind!r} must give the pairs that encode was given, got others; override both"
            )
        self._inputs = inputs.to(ensemble.device).expand(len(ensemble.seeds), *inputs.shape)
        self._train = self._training_pairs(task)

    @staticmethod
    def of(experiment: Experiment, ensemble: Ensemble) -> Fourier | None:
        """None if they are off."""
        return None if experiment.measure.fourier == "off" else Fourier(experiment, ensemble)

    def wants(self, epoch: int) -> bool:
        """Whether they are measured in this epoch."""
        return self._measure.fourier == "epochs" or is_snapshot(epoch)

    def power(self) -> Tensor:
        """The share of each frequency in the first weight, (seeds, frequencies)."""
        weight, modulus = self._ensemble.reading, self._group.modulus
        assert weight is not None
        return fourier_power(weight[..., : weight.shape[-1] // modulus * modulus], self._group)

    def measures(self, power: Tensor) -> dict[str, Tensor]:
        """The others, one number per seed; `power` is that of now."""
        both = zip(torch.split(self._table(), 1), torch.split(self._train, 1), strict=True)
        each = [self._of_logits(logits, train) for logits, train in both]
        values = (concentration(power), *torch.cat(each, 1))
        return dict(zip(FOURIER, values, strict=True))

    def _of_logits(self, logits: Tensor, train: Tensor) -> Tensor:
        """Excluded and restricted loss and the scale of one seed, (3, 1). Seed by seed: a table in float64 is large."""
        group, loss = self._group, self._ensemble.loss
        key = key_frequencies(logits, group, self._measure.key_frequencies)
        excluded, restricted = excluded_loss(logits, group, key, train, loss), restricted_loss(logits, group, key, loss)
        return torch.stack([excluded, restricted, logit_scale(logits)])

    @torch.no_grad()
    def _table(self) -> Tensor:
        """The logits of every pair, (seeds, size, size, outputs)."""
        size = CHUNK.get(self._ensemble.device.type, self._inputs.shape[1])
        outputs = torch.cat([self._ensemble.forward(part) for part in torch.split(self._inputs, size, 1)], 1)
        return outputs.reshape(len(outputs), self._group.size, self._group.size, -1)

    def _training_pairs(self, task: Modular) -> Tensor:
        """Which pairs each seed is trained on, (seeds, size, size); a pair with a number outside the group is left out."""
        logs = self._group.logarithms.to(self._ensemble.device)
        first, second = (logs[numbers] for numbers in task.decode(self._ensemble.train.inputs))
        found = torch.zeros(len(first), self._group.size, self._group.size, dtype=torch.bool, device=first.device)
        for own, s, t in zip(found, first, second, strict=True):
            inside = (s >= 0) & (t >= 0)
            own[s[inside], t[inside]] = True
        return found


@torch.no_grad()
def fourier_power(weight: Tensor, group: Group) -> Tensor:
    """The share of each frequency from 1 to size // 2 in a weight that reads one-hot numbers: (..., frequencies).

    `weight` is (..., out, columns), with a column for every number below the modulus, once or more: for a, then for b. A
    row's values are written as waves over the group, and the squares are added up over rows and over a and b. The constant
    is left out, so that shares add up to 1. Random weights have equal shares. With an even size the last frequency has
    half of the others' share, since it has a cosine and no sine.

    NaN where no value varies, or one is not finite.
    """
    columns = weight.shape[-1]
    if weight.ndim < 2 or columns == 0 or columns % group.modulus:
        raise ValueError(
            f"weight must be (..., out, columns) with a multiple of {group.modulus} columns, got {tuple(weight.shape)}; "
            f"pass the columns that read the numbers, without others"
        )
    blocks = weight.double().reshape(*weight.shape[:-1], -1, group.modulus)
    values = blocks[..., group.elements.to(weight.device)]
    values = values / values.abs().amax((-3, -2, -1), keepdim=True)  # so that no square overflows
    everything: Tensor = torch.fft.rfft(values).abs().square().sum((-3, -2))
    power = everything[..., 1:]
    if group.size % 2 == 0:
        power[..., -1] /= 2  # all others stand for frequency k and size - k
    total = power.sum(-1, keepdim=True)
    return power / torch.where(total > NOISE * everything[..., :1], total, torch.nan)


def concentration(power: Tensor) -> Tensor:
    """The Gini coefficient of the shares in the last dimension: 0 if all are equal, 1 - 1 / n if one of n has everything.

    Nanda et al. take it, after Hurley and Rickard 2009, of the norms of Fourier components. Here it is of their squares.
    """
    ordered, count = power.sort(-1).values, power.shape[-1]
    signed = 2 * torch.arange(1, count + 1, device=power.device) - count - 1
    return (ordered * signed).sum(-1) / (count * ordered.sum(-1))


@torch.no_grad()
def key_frequencies(logits: Tensor, group: Group, count: int) -> Tensor:
    """The `count` frequencies with the strongest waves of the answer in a table of logits: (seeds, count), ascending.

    A wave of the answer is cos or sin of 2π k t / size, where t is the answer's logarithm: for addition, of a + b. Nanda et
    al. read five frequencies off the trained network. Here they are those of the network as it is.
    """
    if not 1 <= count <= group.frequencies:
        raise ValueError(f"count must be from 1 to {group.frequencies}, got {count}; a group of {group.size} has no others")
    power = _waves(logits, group)[:, 1:].abs().square().sum(-1)
    if group.size % 2 == 0:
        power[:, -1] /= 2
    return power.topk(count).indices.sort().values + 1


@torch.no_grad()
def restricted_logits(logits: Tensor, group: Group, key: Tensor) -> Tensor:
    """The constant and the key frequencies' waves of the answer, by the answer's logarithm: (seeds, size, outputs)."""
    waves = _waves(logits, group)
    kept = torch.zeros(waves.shape[:2], dtype=torch.bool, device=logits.device).scatter_(1, key, True)
    kept[:, 0] = True
    restricted: Tensor = torch.fft.irfft(torch.where(kept[..., None], waves, 0), n=group.size, dim=1)
    return restricted


@torch.no_grad()
def excluded_logits(logits: Tensor, group: Group, key: Tensor) -> Tensor:
    """The table of logits without the key frequencies' waves of the answer. All else stays, the constant too."""
    table = logits.double()
    waves = restricted_logits(logits, group, key) - table.mean((1, 2))[:, None]
    return table - waves[:, group.answers.to(logits.device)]


def restricted_loss(logits: Tensor, group: Group, key: Tensor, loss: LossFunction = cross_entropy) -> Tensor:
    """The loss over all pairs if logits have nothing but a constant and the key frequencies' waves: (seeds,).

    It falls as soon as these waves suffice, even if what was memorised still spoils the test loss.
    """
    labels = group.elements.to(logits.device).expand(len(logits), -1)
    return loss(restricted_logits(logits, group, key), labels)  # every answer has as many pairs


def excluded_loss(
    logits: Tensor, group: Group, key: Tensor, among: Tensor | None = None, loss: LossFunction = cross_entropy
) -> Tensor:
    """The loss over the pairs in `among` if the key frequencies' waves are taken out of the logits: (seeds,).

    It rises when the network leaves what it has memorised and relies on these waves.

    Args:
        among: the training pairs, as in the paper, (seeds, size, size); None: all pairs.
    """
    table = excluded_logits(logits, group, key)
    labels = group.elements.to(logits.device)[group.answers.to(logits.device)]
    chosen = torch.ones(table.shape[:3], dtype=torch.bool, device=logits.device) if among is None else among
    each = [loss(own[pairs][None], labels[pairs][None]) for own, pairs in zip(table, chosen, strict=True)]
    return torch.cat(each)


@torch.no_grad()
def logit_scale(logits: Tensor) -> Tensor:
    """The root mean square of each seed's logits, (seeds, ..., outputs), without their mean over the outputs: (seeds,).

    Softmax does not see that mean.
    """
    table = logits.double()
    return (table - table.mean(-1, keepdim=True)).flatten(1).square().mean(1).sqrt()


def _waves(logits: Tensor, group: Group) -> Tensor:
    """The Fourier transform of the mean logits of each answer: (seeds, size // 2 + 1, outputs).

    A wave of the answer is constant over pairs with the same answer, so the mean over these projects onto all such waves.
    """
    size = group.size
    if logits.ndim != 4 or logits.shape[1:3] != (size, size):
        raise ValueError(
            f"logits must be (seeds, {size}, {size}, outputs), got {tuple(logits.shape)}; "
            f"pass a row for each pair of the group"
        )
    first, second = torch.arange(size, device=logits.device), group.partners.to(logits.device)
    waves: Tensor = torch.fft.rfft(logits.double()[:, first, second].mean(2), dim=1)
    return waves
