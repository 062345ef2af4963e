"""Clues to the output head of a model: the names of its layers, the order of their registration, and their widths."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from torch import nn

from egalitarian.select.fused import looks_fused
from egalitarian.select.layouts import is_layer, layout
from egalitarian.select.listing import Listed, Owner

_ASIDE = re.compile(r"(.*_)?(router|gate|gating|attn?|attention|mask)s?")
"""Names of layers whose outputs are weights for the outputs of others, such as attention and gates."""
_GATES = re.compile(r"(.*_)?(router|gate|gating|modulation|film)s?|adaln.*|rel_pos.*")
"""Names of layers whose outputs scale or shift the outputs of others: never a head."""
_INNER = {"pooler", "pre_classifier"}
"""Names of layers right before a head."""
_ATTENTION = {"key", "query", "k", "q", "keys", "queries", "q_proj", "k_proj"}
_PLAIN = (nn.Sequential, nn.ModuleList, nn.ModuleDict)
_PARTS = 4
"""How many outputs of equal width may be concatenated as the input of one layer."""


@dataclass(frozen=True, eq=False)
class Layer:
    """A layer of the model, with the widths of its inputs and outputs. An adapter counts as part of its layer."""

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

    @property
    def pattern(self) -> str:
        """Its path without its first number: the same layers of numbered blocks share it."""
        return re.sub(r"(?<![^.])\d+(?![^.])", "*", self.path, count=1)

    def feeds(self, other: Layer) -> bool:
        """Whether the width of its outputs fits the inputs of the other layer, if need be after flattening channels."""
        flat = self.spatial and not other.spatial and any(width % self.outputs == 0 for width in other.inputs)
        return self is not other and (self.outputs in other.inputs or flat)

    def has_name(self, names: re.Pattern[str]) -> bool:
        """Whether its own name, without those of the modules around it, is one of these."""
        return bool(names.fullmatch(self.path.lower().rpartition(".")[2]))

    def is_named(self, names: re.Pattern[str]) -> bool:
        """Whether its own name, or that of a module around it, is one of these."""
        return any(names.fullmatch(step) for step in self.path.lower().split("."))


@dataclass(frozen=True)
class Network:
    """The layers of a model, and other parameters that may belong to a layer."""

    found: list[Layer] = field(default_factory=list)
    """In the order in which the model registers them."""
    others: list[tuple[Owner, Listed]] = field(default_factory=list)
    """Embeddings, and matrices of modules that are not recognised."""


class Clues:
    """Answers questions about the layers of a model that help to find its heads."""

    def __init__(self, layers: Network) -> None:
        self.layers, self.others = layers.found, layers.others
        self._taken_in = Counter(width for layer in self.layers for width in layer.inputs)
        self._flat = {width for layer in self.layers if not layer.spatial for width in layer.inputs}
        self._children: dict[nn.Module, Counter[object]] = {}
        self._repeated: dict[nn.Module, bool] = {}
        self._parallel: dict[nn.Module, bool] = {}
        self._inside: dict[nn.Module, list[Layer]] = {}
        for layer in self.layers:
            for _, module in layer.around:
                self._inside.setdefault(module, []).append(layer)
        self._led = {layer for layer in self.layers if self._has_neighbour(layer, 0)}
        """Layers that a Sequential around them calls after others."""
        self._followed = {layer for layer in self.layers if self._has_neighbour(layer, -1)}
        """Layers that a Sequential around them calls before others."""
        self._outer = [layer for layer in self.layers if not _is_inner(layer)]
        self.ends = [layer for layer in self._outer if layer.simple and not self._is_repeated(layer.around)]
        """The layers that can be a head: those outside of repeated blocks."""
        self.last = self._outer[-1] if self._outer and self._outer[-1] in self.ends else None
        """The layer that is registered last, if it can be a head."""

    @property
    def is_alone(self) -> bool:
        """Whether the model has at most one layer, and no other parameters that may belong to a layer."""
        return not self.layers or (len(self.layers) == 1 and not self.others)

    def named(self, names: re.Pattern[str]) -> list[Layer]:
        """The last layer of every module with such a name. A layer that has such a name itself is preferred."""
        parts: dict[nn.Module, Layer] = {}
        for layer in (each for each in self._outer if each.simple):
            part = _part(layer, names)
            if part is not None and (part not in parts or layer.has_name(names) >= parts[part].has_name(names)):
                parts[part] = layer
        return list(dict.fromkeys(parts.values()))

    def ends_here(self, layer: Layer) -> bool:
        """Whether the width of its outputs fits the inputs of no other layer."""
        own = layer.outputs in layer.inputs
        flattened = layer.spatial and any(width % layer.outputs == 0 for width in self._flat)
        return self._taken_in[layer.outputs] == own and not flattened

    def block_ends(self) -> list[Layer]:
        """Where repeated blocks end, if nothing takes what the last one puts out, and that is less than it takes."""
        final = self.layers[-1]
        blocks = [
            block for (_, outer), (_, block) in pairwise(final.around) if isinstance(outer, nn.ModuleList | nn.Sequential)
        ]
        narrows = bool(blocks) and final.outputs < min(self._inside[blocks[0]][0].inputs)
        if not narrows or final not in self._outer or not final.simple or not self.ends_here(final):
            return []
        return [layer for layer in self._outer if layer.pattern == final.pattern]

    def alike(self, heads: list[Layer]) -> list[Layer]:
        """The heads, and other layers that look like them: several heads often share the width of their inputs."""
        return heads + [each for each in self._beside(heads) if not self._is_joined(each, heads)]

    def doubtful(self, heads: list[Layer]) -> list[Layer]:
        """Other layers that may be heads: their outputs fit no other layer, or may enter one only in part."""
        beside = self._beside(heads)
        others = [layer for layer in self.ends if layer not in heads and not self._is_within(layer, heads)]
        return [layer for layer in others if layer in beside or self._is_orphan(layer, heads)]

    def unrecognised(self, heads: list[Layer]) -> list[Listed]:
        """Matrices of unrecognised modules that may take the outputs of one of these heads. Each may be a head instead."""
        widths = {head.outputs: head for head in heads}
        found = {
            item: None
            for owner, item in self.others
            for head in [widths.get(width) for width in item.parameter.shape]
            if head is not None and self._may_follow(owner, item, head)
        }
        return list(found)

    def _may_follow(self, owner: Owner, item: Listed, head: Layer) -> bool:
        """Whether the matrix can come after the head: by its owner's order, by a module around both, or as an embedding."""
        if item.parameter.ndim != 2 or 1 in item.parameter.shape or not item.parameter.is_floating_point():
            return False
        if isinstance(owner.layer, nn.Embedding):
            return item.parameter.shape[1] == head.outputs
        holds = any(module is owner.module for _, module in head.around)
        return (owner.order > head.order or holds) and not self._is_repeated(owner.around)

    def _is_orphan(self, layer: Layer, heads: list[Layer]) -> bool:
        """Whether its outputs fit no other layer: neither whole, nor split in equal parts, nor concatenated with others."""
        if layer.is_named(_ASIDE) or layer in self._followed:
            return False
        width, here = layer.outputs, self.layers.index(layer)
        if any(layer.feeds(other) and layer.spatial >= other.spatial for other in self.layers[:here]):
            return False
        later = self.layers[here + 1 :]
        taken = {each for other in later for each in other.inputs}
        parts = any(
            width % each == 0 or (each % width == 0 and each <= _PARTS * width) for each in taken if each > 1 < width
        )
        return not parts and not self._is_joined(layer, heads) and not any(layer.feeds(other) for other in later)

    def _is_joined(self, layer: Layer, heads: list[Layer]) -> bool:
        """Whether a later layer may take its outputs in parts or together with others, as no other layer has that width.

        If a head has as many outputs, only multiples of that width count: there it would be joined with layers like it.
        """
        here, width = self.layers.index(layer) + 1, layer.outputs
        known = {each for other in self.layers[:here] for each in other.inputs}
        taken = {each for other in self.layers[here:] if other not in self._led for each in other.inputs} - known
        if any(head.outputs == width for head in heads):
            fits = {each for each in taken if each > width > 1 and each % width == 0}
        else:
            fits = {each for each in taken if each > width or (each > 1 and width % each == 0)}
        return any(not self._is_made(each) for each in fits)

    def _has_neighbour(self, layer: Layer, end: int) -> bool:
        """Whether a Sequential around it has other layers before it (`end` 0) or after it (`end` -1)."""
        return any(
            isinstance(parent, nn.Sequential) and self._inside[parent][end] is not self._inside[child][end]
            for (_, parent), (_, child) in pairwise(layer.around)
        )

    def _is_made(self, width: int) -> bool:
        """Whether a single layer or embedding has outputs of this width, and does not feed the next of a Sequential."""
        if any(item.parameter.shape[-1] == width for _, item in self.others):
            return True
        fits = [each for each in self.layers if each.outputs == width or (each.spatial and width % each.outputs == 0)]
        return any(each not in self._followed for each in fits)

    def _is_within(self, layer: Layer, heads: list[Layer]) -> bool:
        """Whether it is deep in a module that alone feeds a head further out: what it puts out stays in there."""
        return any(len(layer.around) > len(head.around) and self._is_fed_by_part(layer, head) for head in heads)

    def _is_fed_by_part(self, layer: Layer, head: Layer) -> bool:
        """Whether all that fits the head's part is in the part that holds the layer, each a child of what holds both."""
        depth = next(i for i, (one, other) in enumerate(zip(layer.around, head.around, strict=False)) if one != other)
        part, around = self._inside[layer.around[depth][1]], self._inside[head.around[depth][1]]
        fits = [each for each in self.layers if each.feeds(around[0]) and each not in around and each is not layer]
        return bool(fits) and all(each in part for each in fits)

    def _beside(self, heads: list[Layer]) -> list[Layer]:
        """What ends like one of the heads: with as many outputs, or from inputs of its width."""
        others = [layer for layer in self.ends if layer not in heads and not layer.is_named(_ASIDE)]
        ends = [layer for layer in others if self.ends_here(layer) and not self._is_within(layer, heads)]
        return [layer for layer in ends if any(self._are_alike(layer, head) for head in heads)]

    def _are_alike(self, layer: Layer, head: Layer) -> bool:
        earlier = self.layers[: self.layers.index(layer)]
        fed = layer.inputs == head.inputs and any(other.feeds(layer) for other in earlier)
        return layer.spatial == head.spatial and (layer.outputs == head.outputs or fed)

    def _is_repeated(self, around: Sequence[tuple[str, nn.Module]]) -> bool:
        """Whether the innermost module is in one of several blocks that follow each other.

        The last layers of parallel blocks do not count.
        """
        innermost = around[-1][1]
        for (_, parent), (_, block) in pairwise(around):
            if isinstance(parent, nn.ModuleList | nn.Sequential) and block is not innermost:
                if block not in self._repeated:
                    self._repeated[block] = self._is_block(parent, block)
                if self._repeated[block] and not self._ends_beside(parent, block, innermost):
                    return True
        return False

    def _ends_beside(self, parent: nn.Module, block: nn.Module, innermost: nn.Module) -> bool:
        """Whether the innermost module is the last layer of one of several parallel blocks."""
        if parent not in self._parallel:
            self._parallel[parent] = isinstance(parent, nn.ModuleList) and self._are_parallel(list(parent.children()))
        return self._parallel[parent] and self._inside[block][-1].module is innermost

    def _are_parallel(self, blocks: list[nn.Module]) -> bool:
        """Whether, by their widths, no block can take the outputs of the block before it."""
        inside = [self._inside.get(block, []) for block in blocks]
        if len(blocks) < 2 or not all(inside) or any(_attends(block) for block in blocks):
            return False
        pairs = zip(blocks, inside, inside[1:], strict=False)
        return not any(_chains(block, first, second) for block, first, second in pairs)

    def _is_block(self, parent: nn.Module, block: nn.Module) -> bool:
        """Whether it equals a sibling. A block that equals none counts, too, if it does not narrow, as heads do."""
        if parent not in self._children:
            self._children[parent] = Counter(key for child in parent.children() for key in (type(child), _kind(child)))
        children = self._children[parent]
        if children[_kind(block)] > 1:
            return True
        alone = isinstance(parent, nn.ModuleList) and children[type(block)] == 1
        several = children[type(block)] > 1 and type(block) not in _PLAIN
        inside = self._inside.get(block, [])
        return len(inside) > 1 and (alone or several) and inside[-1].outputs >= min(inside[0].inputs)


def layers_of(listed: Iterable[Listed]) -> Network:
    """Sorts parameters into layers, and others that may belong to a layer."""
    owned = sorted(((owner, item) for item in listed for owner in item.owners), key=lambda pair: pair[0].order)
    embeddings = {item for owner, item in owned if isinstance(owner.layer, nn.Embedding | nn.EmbeddingBag)}
    found: dict[nn.Module, Layer] = {}
    others = []
    for owner, item in owned:
        seen = layout(owner, item.parameter)
        within_attention = any(isinstance(module, nn.MultiheadAttention) for _, module in owner.around[:-1])
        if item.parameter.ndim > 1 and (item in embeddings or not seen.known):
            others.append((owner, item))
        if seen.reason or owner.factor or item.parameter.ndim - seen.stacked < 2 or within_attention:
            continue
        path, module = owner.unit[-1]
        inputs, outputs = _widths(owner, item, seen.output, seen.stacked)
        simple, tied = is_layer(owner.layer), item in embeddings
        spatial = simple and item.parameter.ndim > 2 and not isinstance(owner.layer, nn.Bilinear)
        found.setdefault(module, Layer(path, module, owner.unit, inputs, outputs, simple, spatial, tied, owner.order))
    return Network(list(found.values()), others)


def outermost(heads: Iterable[Layer]) -> list[Layer]:
    """The layers without those that feed another one further out, as a dense layer inside `head` feeds the decoder."""
    found = list(dict.fromkeys(heads))
    return [one for one in found if not any(one.feeds(other) and _is_outside(other, one) for other in found)]


def _is_outside(outer: Layer, inner: Layer) -> bool:
    """Whether the module that holds the outer one is around what holds the inner one."""
    return len(outer.around) < len(inner.around) and outer.around[:-1] == inner.around[: len(outer.around) - 1]


def _chains(block: nn.Module, first: list[Layer], second: list[Layer]) -> bool:
    """Whether the second block may take the outputs of the first: of its last layer, or of any if the order is unknown."""
    made = {layer.outputs for layer in (first[-1:] if isinstance(block, nn.Sequential) else first)}
    return not made.isdisjoint(second[0].inputs)


def _attends(block: nn.Module) -> bool:
    return not _ATTENTION.isdisjoint(name for name, _ in block.named_children())


def _widths(owner: Owner, item: Listed, output: int, stacked: bool) -> tuple[frozenset[int], int]:
    layer = owner.layer
    if isinstance(layer, nn.Bilinear):
        return frozenset({layer.in1_features, layer.in2_features}), layer.out_features
    if isinstance(layer, nn.MultiheadAttention):
        return frozenset({layer.embed_dim, layer.kdim or 0, layer.vdim or 0}), layer.embed_dim
    if isinstance(layer, nn.RNNBase):
        return frozenset({layer.input_size}), (layer.proj_size or layer.hidden_size) * (2 if layer.bidirectional else 1)
    if isinstance(layer, nn.RNNCellBase):
        return frozenset({layer.input_size}), layer.hidden_size
    shape = item.parameter.shape[1:] if stacked else item.parameter.shape
    return frozenset({shape[1 - output] * getattr(layer, "groups", 1)}), shape[output]


def _part(layer: Layer, names: re.Pattern[str]) -> nn.Module | None:
    """The outermost module with such a name around the layer, or its child if it lists modules. None inside a list."""
    for index, (path, module) in enumerate(layer.around[1:], 1):
        parent = layer.around[index - 1][1]
        step = path.rpartition(".")[2]
        if isinstance(parent, nn.ModuleList) or _is_one_of_many(parent, module):
            return None
        if names.fullmatch(step.lower()) and not _attends(parent):
            several = isinstance(module, nn.ModuleList | nn.ModuleDict) and layer.around[index + 1 :]
            return layer.around[index + 1][1] if several else module
    return None


def _is_one_of_many(parent: nn.Module, module: nn.Module) -> bool:
    if not isinstance(parent, nn.Sequential) or is_layer(module) or type(module) in _PLAIN:
        return False
    return sum(type(child) is type(module) for child in parent.children()) > 1


def _is_inner(layer: Layer) -> bool:
    """Whether its name says that it is no head: a pooler, a gate, or several projections in one weight."""
    steps = layer.path.split(".")
    return (
        layer.is_named(_GATES) or looks_fused(steps[-1], layer.outputs, min(layer.inputs)) or not _INNER.isdisjoint(steps)
    )


def _kind(module: nn.Module) -> tuple[object, ...]:
    """Its class and the shapes of its parameters, which are the same for repeated blocks."""
    return type(module), *(parameter.shape for parameter in module.parameters())
