"""The layers of a model as a graph: who may feed whom.

The widths of two layers say how the one may feed the other (`Feeding`). Three rules exclude what is unlikely:

- Sequentials keep their order. A layer feeds the next child only, and nothing outside unless it is in the last child.
- Order of registration. Only a later layer takes outputs in part or with others, or is a convolution fed by a Linear.
- Every convolution needs a taker. If only the Linear right behind it fits, then that one takes nothing else.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import pairwise

from torch import nn

from egalitarian.select.fused import looks_fused
from egalitarian.select.layouts import down_to_layer, is_layer, layout, widths
from egalitarian.select.listing import Listed, Owner

_ASIDE = re.compile(r"(.*_)?(router|gate|gating|attn?|attention|mask)s?", re.IGNORECASE)
"""Names of layers whose outputs are weights for the outputs of others, such as attention and gates."""
_GATES = re.compile(r"(.*_)?(router|gate|gating|modulation|film)s?|adaln.*|rel_pos.*", re.IGNORECASE)
"""Names of layers whose outputs scale or shift the outputs of others: never a head."""
_INNER = re.compile("pooler|pre_classifier")
"""Names of layers right before a head."""
_ATTENTION = {"key", "query", "k", "q", "keys", "queries", "q_proj", "k_proj"}
PLAIN = (nn.Sequential, nn.ModuleList, nn.ModuleDict)
"""Containers for anything: two of one class need not be alike."""
_MEMBERS = 4
"""How many outputs of equal width may be concatenated as the input of a layer whose width is explained otherwise."""


@dataclass(frozen=True, eq=False)
class Layer:
    """A layer of the model, with the widths of its inputs and outputs. What it holds, such as an adapter, is part of it."""

    path: str
    module: nn.Module
    around: tuple[tuple[str, nn.Module], ...]
    inputs: frozenset[int]
    outputs: int
    simple: bool
    """Whether it is a Linear, Bilinear or convolution. Only such a layer can be a head."""
    spatial: bool
    """Whether it is a convolution."""
    tied: bool
    """Whether it shares its weight with an embedding."""
    order: int
    """Of two layers, the one that is registered later has the larger number."""

    @property
    def is_inner(self) -> bool:
        """Whether its name says that it is no head: a pooler, a gate, or several projections in one weight."""
        fused = looks_fused(self.path.rpartition(".")[2], self.outputs, min(self.inputs))
        return fused or self.is_named(_GATES) or self.is_named(_INNER)

    def has_name(self, names: re.Pattern[str]) -> bool:
        """Whether its own name, without those of the modules around it, is one of these."""
        return bool(names.fullmatch(self.path.rpartition(".")[2]))

    def is_named(self, names: re.Pattern[str]) -> bool:
        """Whether its own name, or that of a module around it, is one of these."""
        return any(names.fullmatch(step) for step in self.path.split("."))


class Feeding(Enum):
    """How the outputs of one layer may enter another."""

    NEXT = "a Sequential calls the other one next"
    WHOLE = "as many inputs as outputs"
    FLAT = "channels of a convolution, flattened"
    PART = "split in equal parts"
    LIKE = "concatenated with others of its width"
    MIXED = "concatenated with anything"

    @property
    def is_strong(self) -> bool:
        """Whether the widths fit as they are."""
        return self in (Feeding.NEXT, Feeding.WHOLE, Feeding.FLAT)


class Graph:
    """The layers of a model, and who may feed whom. An edge is made when it is asked for: there may be millions."""

    def __init__(self, listed: Iterable[Listed]) -> None:
        self.layers: list[Layer] = []
        """In the order in which the model registers them."""
        self.others: list[tuple[Owner, Listed]] = []
        """Embeddings, and matrices of modules that are not recognised."""
        self._read(listed)
        self._inside: dict[nn.Module, list[Layer]] = {}
        self._calls: dict[nn.Module, dict[nn.Module, int]] = {}
        """By Sequential: the place of each child that has layers. One with its own forward pass may have another order."""
        for layer in self.layers:
            for _, module in layer.around:
                self._inside.setdefault(module, []).append(layer)
            for (_, parent), (_, child) in pairwise(layer.around):
                if isinstance(parent, nn.Sequential) and type(parent).forward is nn.Sequential.forward:
                    calls = self._calls.setdefault(parent, {})
                    calls.setdefault(child, len(calls))
        self._preceded = {layer: self._deepest(layer, 0) for layer in self.layers}
        """How deep in the nesting is the innermost Sequential that calls another child before the layer; -1 without one."""
        self._followed = {layer: self._deepest(layer, -1) for layer in self.layers}
        """The same for a child behind it."""
        self._index = {layer: index for index, layer in enumerate(self.layers)}
        self._claimed: dict[Layer, bool] = {}
        self._unexplained: dict[Layer, bool] = {}
        self._repeated: dict[nn.Module, bool] = {}
        self._parallel: dict[nn.Module, bool] = {}
        self._kinds: dict[nn.Module, Counter[object]] = {}
        self.outer = [layer for layer in self.layers if not layer.is_inner]
        self.ends = [layer for layer in self.outer if layer.simple and not self.is_repeated(layer.around)]
        """The layers that can be a head: those outside of repeated blocks."""

    def _read(self, listed: Iterable[Listed]) -> None:
        owned = sorted(((owner, item) for item in listed for owner in item.owners), key=lambda pair: pair[0].order)
        embeddings = {item for owner, item in owned if isinstance(owner.layer, nn.Embedding | nn.EmbeddingBag)}
        found: dict[nn.Module, Layer] = {}
        for owner, item in owned:
            seen = layout(owner, item.parameter)
            within_attention = any(isinstance(module, nn.MultiheadAttention) for _, module in owner.around[:-1])
            if item.parameter.ndim > 1 and (item in embeddings or not seen.known):
                self.others.append((owner, item))
            if seen.reason or owner.factor or item.parameter.ndim - seen.stacked < 2 or within_attention:
                continue
            around = down_to_layer(owner.unit)
            inputs, outputs = widths(owner, item.parameter, seen.output, seen.stacked)
            simple, tied = is_layer(owner.layer), item in embeddings
            spatial = simple and item.parameter.ndim > 2 and not isinstance(owner.layer, nn.Bilinear)
            found.setdefault(around[-1][1], Layer(*around[-1], around, inputs, outputs, simple, spatial, tied, owner.order))
        self.layers = list(found.values())

    def _deepest(self, layer: Layer, end: int) -> int:
        """The depth of the innermost Sequential around the layer in which it is not in the child at this end."""
        found = -1
        for depth, ((_, parent), (_, child)) in enumerate(pairwise(layer.around)):
            calls = self._calls.get(parent, {child: 0})
            if calls[child] != (len(calls) - 1 if end else 0):
                found = depth
        return found

    def feeds(self, one: Layer, other: Layer) -> bool:
        """Whether the outputs of the one fit the inputs of the other, if need be after flattening channels."""
        return self._fitting(one, other) in (Feeding.WHOLE, Feeding.FLAT)

    def leads_to(self, one: Layer, end: Layer) -> bool:
        """Whether it feeds the other, or the Sequential that ends in it."""
        return self.feeds(one, self._entry(end))

    def takers(self, one: Layer) -> Iterator[tuple[Layer, Feeding]]:
        """The layers that may take its outputs, and how; those behind it first."""
        here = self._index[one]
        for other in (*self.layers[here + 1 :], *self.layers[:here]):
            if (how := self._feeding(one, other)) is not None:
                yield other, how

    def _entry(self, end: Layer) -> Layer:
        """The first layer of the outermost Sequential that ends in this one; itself if there is none."""
        inside = (self._inside[module] for _, module in end.around if module in self._calls)
        return next((layers[0] for layers in inside if layers[-1] is end), end)

    def _feeding(self, one: Layer, other: Layer) -> Feeding | None:
        """How the one may feed the other. Only a layer that is registered later takes outputs in part, or with others."""
        how = self._fitting(one, other)
        if how or other.order <= one.order or not self._may_follow(one, other):
            return how
        parts = [width for width in other.inputs if width > 1]
        if any(width < one.outputs and one.outputs % width == 0 for width in parts):
            return Feeding.PART
        wider = [width for width in parts if width > one.outputs > 1]
        many = [width for width in wider if width % one.outputs == 0]
        if many and (min(many) <= _MEMBERS * one.outputs or self.is_unexplained(other)):
            return Feeding.LIKE
        return Feeding.MIXED if wider and self.is_unexplained(other) else None

    def _fitting(self, one: Layer, other: Layer) -> Feeding | None:
        """How the one may feed the other, if the widths fit as they are."""
        if one is other or (other.spatial and not one.spatial and other.order < one.order):
            return None  # a convolution takes what a linear layer makes only if it is registered later, as in a generator
        flat = one.spatial and not other.spatial and any(width % one.outputs == 0 for width in other.inputs)
        how = Feeding.WHOLE if one.outputs in other.inputs else Feeding.FLAT if flat else None
        if (how is None and self._followed[one] < 0) or not self._may_follow(one, other):
            return None
        return how or (Feeding.NEXT if one.around[_common(one, other) - 1][1] in self._calls else None)

    def _may_follow(self, one: Layer, other: Layer) -> bool:
        """Whether the Sequentials around them, and the convolution before the other, let it take what the one puts out.

        A Sequential hands the outputs of a child to the next one alone, and only those of the last child leave it.
        """
        depth = _common(one, other) - 1
        if self._followed[one] > depth or self._preceded[other] > depth or (not one.spatial and self._is_claimed(other)):
            return False
        calls = self._calls.get(one.around[depth][1])
        return calls is None or calls[other.around[depth + 1][1]] == calls[one.around[depth + 1][1]] + 1

    def _is_claimed(self, layer: Layer) -> bool:
        """Whether it takes the flattened channels of the convolution right before it, as nothing else takes those."""
        if layer not in self._claimed:
            before = self.layers[max(self._index[layer] - 1, 0)]
            whole = (other for other in self.layers if other is not before and before.outputs in other.inputs)
            flat = before.spatial and not layer.spatial and self.feeds(before, layer)
            self._claimed[layer] = flat and not any(self._may_follow(before, other) for other in whole)
        return self._claimed[layer]

    def is_unexplained(self, layer: Layer) -> bool:
        """Whether nothing explains its width: no layer or embedding makes it, and no layer before takes it."""
        if layer not in self._unexplained:
            first = not any(layer.inputs & each.inputs for each in self.layers[: self._index[layer]])
            made = any(item.parameter.shape[-1] in layer.inputs for _, item in self.others)
            self._unexplained[layer] = first and not made and not any(self._fitting(each, layer) for each in self.layers)
        return self._unexplained[layer]

    def ends_here(self, layer: Layer, *, later: bool = False) -> bool:
        """Whether its outputs fit no other layer, or none that is registered later."""
        return not any(how.is_strong and (other.order > layer.order or not later) for other, how in self.takers(layer))

    def block_ends(self) -> list[Layer]:
        """Where repeated blocks end, if nothing takes what the last one puts out, and that is less than it takes."""
        final = self.layers[-1]
        pairs = pairwise(final.around)
        blocks = [block for (_, outer), (_, block) in pairs if isinstance(outer, nn.ModuleList | nn.Sequential)]
        narrows = bool(blocks) and final.outputs < min(self._inside[blocks[0]][0].inputs)
        if not narrows or final not in self.outer or not final.simple or not self.ends_here(final):
            return []
        numbered = re.compile(r"(?<![^.])\d+(?![^.])")
        return [layer for layer in self.outer if numbered.sub("*", layer.path, 1) == numbered.sub("*", final.path, 1)]

    def may_chain(self, heads: list[Layer]) -> bool:
        """Whether these end parallel blocks, and one block may take a part of what the one before puts out."""
        lists = [module for head in heads for _, module in head.around if self._parallel.get(module)]
        blocks = [(self._inside[one], self._inside[other]) for each in lists for one, other in pairwise(each.children())]
        return any(self._feeding(first[-1], then[0]) is Feeding.PART for first, then in blocks)

    def alike(self, heads: list[Layer]) -> list[Layer]:
        """The heads, and other layers that look like them: they have as many outputs, or start from the same features."""
        found = [layer for layer in self._similar_ends(heads) if not self._is_joined(layer, heads)]
        return heads + [layer for layer in found if any(self._are_alike(layer, head) for head in heads)]

    def doubtful(self, heads: list[Layer]) -> list[Layer]:
        """Other layers that may be heads: nothing takes their outputs, or only in part or with others."""
        similar = self._similar_ends(heads)
        return [layer for layer in self._candidates(heads) if layer in similar or not any(self.takers(layer))]

    def _candidates(self, heads: list[Layer]) -> list[Layer]:
        others = [layer for layer in self.ends if layer not in heads and not layer.is_named(_ASIDE)]
        return [layer for layer in others if not any(self._is_within(layer, head) for head in heads)]

    def _similar_ends(self, heads: list[Layer]) -> list[Layer]:
        """What ends like one of the heads: with as many inputs or outputs, or in a Sequential with as many inputs."""
        return [layer for layer in self._candidates(heads) if any(self._ends_like(layer, head) for head in heads)]

    def _ends_like(self, layer: Layer, head: Layer) -> bool:
        """For the twin of a head, which has the same widths, layers that are registered earlier do not count."""
        inputs, outputs = layer.inputs == head.inputs, layer.outputs == head.outputs
        common = inputs or outputs or self._entry(layer).inputs == self._entry(head).inputs
        twin = inputs and outputs and not self.feeds(head, layer)
        return common and layer.spatial == head.spatial and self.ends_here(layer, later=twin)

    def _are_alike(self, layer: Layer, head: Layer) -> bool:
        """Whether they have as many outputs, or start from the same features, which an earlier layer makes."""
        one, other = self._entry(layer), self._entry(head)
        start, end = self._index[one], self._index[other]
        fed = any(self.feeds(each, one) for each in self.layers[:start])
        # a layer of unexplained width in between may make other features of the same width
        remade = any(self.is_unexplained(each) and self.feeds(each, other) for each in self.layers[start:end])
        same = one is not other and one.inputs == other.inputs and fed and not remade
        return same or layer.outputs == head.outputs

    def _is_joined(self, layer: Layer, heads: list[Layer]) -> bool:
        """Whether its outputs, in part or with others, explain the width of a later layer.

        If a head has as many outputs, only multiples of that width count: there it would be joined with layers like it.
        """
        like = any(head.outputs == layer.outputs for head in heads)
        found = [how for other, how in self.takers(layer) if self.is_unexplained(other)]
        return Feeding.LIKE in found or (bool(found) and not like)

    def _is_within(self, layer: Layer, head: Layer) -> bool:
        """Whether it is deep in a module that alone feeds a head further out: what it puts out stays in there."""
        if len(layer.around) <= len(head.around):
            return False
        depth = _common(layer, head)
        part, around = self._inside[layer.around[depth][1]], self._inside[head.around[depth][1]]
        fits = [one for one in self.layers if one is not layer and one not in around and self.feeds(one, around[0])]
        return bool(fits) and all(one in part for one in fits)

    def is_repeated(self, around: Sequence[tuple[str, nn.Module]]) -> bool:
        """Whether the innermost module is in one of several blocks in a row. The last layer of a parallel block is not."""
        innermost = around[-1][1]
        for (_, parent), (_, block) in pairwise(around):
            if isinstance(parent, nn.ModuleList | nn.Sequential) and block is not innermost:
                if block not in self._repeated:
                    self._repeated[block] = self._is_block(parent, block)
                ends = self._repeated[block] and self._inside[block][-1].module is innermost
                if self._repeated[block] and not (ends and self._is_parallel(parent)):
                    return True
        return False

    def _is_parallel(self, parent: nn.Module) -> bool:
        """Whether it is a ModuleList of blocks of which none can take the outputs of the one before it."""
        if parent not in self._parallel:
            blocks = list(parent.children()) if isinstance(parent, nn.ModuleList) else []
            inside = [self._inside.get(block, []) for block in blocks]
            known = len(blocks) > 1 and all(inside) and not any(attends(block) for block in blocks)
            pairs = [(one, then[0]) for first, then in pairwise(inside) for one in first] if known else []
            self._parallel[parent] = known and not any(self.feeds(one, other) for one, other in pairs)
        return self._parallel[parent]

    def _is_block(self, parent: nn.Module, block: nn.Module) -> bool:
        """Whether it equals a sibling. A block that equals none counts, too, if it does not narrow, as heads do."""
        if parent not in self._kinds:
            self._kinds[parent] = Counter(key for child in parent.children() for key in (type(child), _kind(child)))
        kinds = self._kinds[parent]
        if kinds[_kind(block)] > 1:
            return True
        alone = isinstance(parent, nn.ModuleList) and kinds[type(block)] == 1
        several = kinds[type(block)] > 1 and type(block) not in PLAIN
        inside = self._inside.get(block, [])
        return len(inside) > 1 and (alone or several) and inside[-1].outputs >= min(inside[0].inputs)


def _common(one: Layer, other: Layer) -> int:
    """How many modules are around both layers."""
    return sum(a == b for a, b in zip(one.around, other.around, strict=False))


def attends(block: nn.Module) -> bool:
    return not _ATTENTION.isdisjoint(name for name, _ in block.named_children())


def _kind(module: nn.Module) -> tuple[object, ...]:
    """Its class and the shapes of its parameters, which are the same for repeated blocks."""
    return type(module), *(parameter.shape for parameter in module.parameters())
