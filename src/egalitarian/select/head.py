"""The output head, by evidence: names, ties to an embedding, the order of registration, and widths that fit."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from torch import nn

from egalitarian.select.example import Example, reached
from egalitarian.select.layouts import is_layer, layout
from egalitarian.select.listing import Listed, Owner

_NAMES = re.compile(
    r"(.*_)?(heads?|classifiers?|logits|policy|critic|actor|scores?|predictors?|predictions?)"
    r"|predict(_.*)?|value|qa_outputs|proj_out|seq_relationship|vocab_projector|generator|discriminator"
)
"""Names of heads, and of the parts that end in one."""
_LIKELY = re.compile(
    r"fc|outc?|final|last|pi|v|readout|decoder|(fc_|final_)?out(put)?s?(_(layer|conv|proj))?|(.*_)?projection"
)
"""Names of many heads, and of other layers too."""
_BY_WIDTH = "by the widths of the layers, though {} is registered last"
_ASIDE = re.compile(r"(.*_)?(router|gate|gating|attn|attention|mask|alpha)s?")
"""Names of layers whose outputs weigh those of others."""
_INNER = ("pooler", "pre_classifier")
_ATTENTION = {"key", "query", "k", "q", "keys", "queries", "q_proj", "k_proj"}
_PLAIN = (nn.Sequential, nn.ModuleList, nn.ModuleDict)


@dataclass(frozen=True, eq=False)
class Layer:
    """What the model calls as one layer, with the width of its inputs and outputs."""

    path: str
    module: nn.Module
    around: tuple[tuple[str, nn.Module], ...]
    inputs: frozenset[int]
    outputs: int
    simple: bool
    """Whether it is a Linear, Bilinear or convolution: another layer is no head."""
    spatial: bool
    tied: bool

    def feeds(self, other: Layer) -> bool:
        """Whether the other takes inputs as wide as its outputs; channels may have been flattened."""
        flat = self.spatial and not other.spatial and any(width % self.outputs == 0 for width in other.inputs)
        return self is not other and (self.outputs in other.inputs or flat)


@dataclass(frozen=True)
class Heads:
    """The parameters of output heads, and where that is not certain, why."""

    items: frozenset[Listed] = frozenset()
    rivals: frozenset[Listed] = frozenset()
    """Those of layers that may be the head instead."""
    doubt: str = ""
    """One sentence that ends with the argument that settles it."""


class _Evidence:
    """What the layers of a model say about its head."""

    def __init__(self, layers: Sequence[Layer]) -> None:
        self.layers = layers
        self._taken_in = Counter(width for layer in layers for width in layer.inputs)
        self._flat = {width for layer in layers if not layer.spatial for width in layer.inputs}
        self._children: dict[nn.Module, Counter[object]] = {}
        self._repeated: dict[nn.Module, bool] = {}
        outer = [layer for layer in layers if not _is_inner(layer)]
        self.ends = [layer for layer in outer if layer.simple and not self._is_repeated(layer)]
        """The layers that can be a head: outside of repeated blocks."""
        self.last = outer[-1] if outer and outer[-1] in self.ends else None
        """The layer that is registered last, if it can be a head."""

    def named(self, names: re.Pattern[str]) -> list[Layer]:
        """The last layer of every part with such a name."""
        parts: dict[nn.Module, Layer] = {}
        for layer in self.layers:
            part = _part(layer, names)
            if part is not None and layer.simple and not _is_inner(layer):
                parts[part] = layer
        return list(dict.fromkeys(parts.values()))

    def ends_here(self, layer: Layer) -> bool:
        """Whether no other layer takes inputs of the width of its outputs."""
        own = layer.outputs in layer.inputs
        flattened = layer.spatial and any(width % layer.outputs == 0 for width in self._flat)
        return self._taken_in[layer.outputs] == own and not flattened

    def alike(self, heads: list[Layer]) -> list[Layer]:
        """The heads, and whatever ends beside them: several heads often share the width of their inputs."""
        return heads + [layer for layer in self.ends if layer not in heads and self._is_beside(layer, heads)]

    def _is_beside(self, layer: Layer, heads: list[Layer]) -> bool:
        if not self.ends_here(layer) or any(_ASIDE.fullmatch(step) for step in layer.path.lower().split(".")):
            return False
        near = [head for head in heads if head.spatial == layer.spatial]
        if any(layer.outputs == head.outputs for head in near):
            return True
        fed = any(other.feeds(layer) for other in self.layers[: self.layers.index(layer)])
        return fed and any(layer.inputs == head.inputs for head in near)

    def _is_repeated(self, layer: Layer) -> bool:
        """Whether a module around the layer is one of several blocks of the same kind."""
        for (_, parent), (path, block) in zip(layer.around, layer.around[1:], strict=False):
            if isinstance(parent, nn.ModuleList | nn.Sequential) and block is not layer.module:
                if block not in self._repeated:
                    self._repeated[block] = self._is_block(parent, block, path)
                if self._repeated[block]:
                    return True
        return False

    def _is_block(self, parent: nn.Module, block: nn.Module, path: str) -> bool:
        """Whether it repeats a neighbour, or is of its class; what ends a model narrows, and blocks do not."""
        if parent not in self._children:
            self._children[parent] = Counter(key for child in parent.children() for key in (type(child), _kind(child)))
        children = self._children[parent]
        if children[_kind(block)] > 1:
            return True
        alone = isinstance(parent, nn.ModuleList) and children[type(block)] == 1
        several = children[type(block)] > 1 and type(block) not in _PLAIN
        inside = [layer for layer in self.layers if layer.path.startswith(f"{path}.")]
        return len(inside) > 1 and (alone or several) and inside[-1].outputs >= min(inside[0].inputs)


def heads_of(listed: Sequence[Listed]) -> Heads:
    """The heads of a model; none if it has a single layer, or ends in repeated blocks."""
    layers = _layers(listed)
    if len(layers) < 2:
        return Heads()
    evidence = _Evidence(layers)
    heads, rivals, why = _found(evidence)
    alike = evidence.alike(heads)
    items = _items(listed, (layer.module for layer in alike))
    if not alike or not why or all(rival in alike for rival in rivals):
        return Heads(items)
    mine = [layer.path for layer in alike]
    doubt = f"the output head is taken to be {_list(mine)} {why.format(_list([layer.path for layer in rivals]))}"
    argument = mine if mine[1:] else mine[0]
    return Heads(
        items, _items(listed, (layer.module for layer in rivals)), f"{doubt}; settle it with head={argument!r} or example="
    )


def heads_by_example(model: nn.Module, listed: Sequence[Listed], example: Example) -> Heads:
    """What the model's outputs are made of; where no graph leads to a layer, the one that is called last."""
    evidence = _Evidence(_layers(listed))
    layers = {layer.module: layer for layer in evidence.layers}
    weights = {item.parameter: item for item in listed if item.parameter.ndim > 1 and item.owners}
    seen = reached(model, list(layers), weights, example)
    final = [layers[module] for module in seen.layers]
    heads = [layer for layer in final if layer in evidence.ends] or (final if len(final) == 1 else [])
    if not final and not seen.weights:
        heads = [layers[module] for module in seen.called[-1:] if layers[module] in evidence.ends]
    direct = {weights[weight] for weight in seen.weights if weight in weights}
    found = _items(listed, (head.module for head in heads if head.simple)) | direct
    return Heads(found if len(layers) > 1 else frozenset())


def last_layer(listed: Sequence[Listed]) -> Heads:
    """The last registered Linear or convolution, unless it is the only one."""
    owners = sorted((owner for item in listed for owner in item.owners), key=lambda owner: owner.order)
    layers = [module for owner in owners for _, module in owner.around if is_layer(module)]
    return Heads(_items(listed, layers[-1:])) if len(set(layers)) > 1 else Heads()


def _found(evidence: _Evidence) -> tuple[list[Layer], list[Layer], str]:
    """The heads, the layers that may be instead, and what speaks for either: empty where nothing speaks against."""
    last, named = evidence.last, evidence.named(_NAMES)
    tied = [layer for layer in evidence.layers if layer.tied and layer.simple]
    if certain := _outermost([*tied, *named]):
        if last is None or any(last.feeds(layer) for layer in certain):
            return certain, [], ""
        return certain, [last], "for its name, though {} is registered last"
    likely = [layer for layer in _outermost(evidence.named(_LIKELY)) if layer in evidence.ends]
    if last is None:
        sure = [layer for layer in likely if evidence.ends_here(layer)]
        return (sure, [], "") if sure else _fed(evidence)
    if last in likely or not likely:
        rivals = [end for end in evidence.ends if evidence.ends_here(end) and last.feeds(end)]
        if rivals and not likely and not evidence.ends_here(last):
            return rivals, [last], _BY_WIDTH
        return [last], [], ""
    if any(last.feeds(layer) for layer in likely):
        return likely, [], ""
    return [last], likely, "as what is registered last, though {} is named like a head"


def _fed(evidence: _Evidence) -> tuple[list[Layer], list[Layer], str]:
    """A head that is registered before what feeds it, such as a recurrent layer or repeated blocks."""
    final = evidence.layers[-1]
    found = [end for end in evidence.ends if evidence.ends_here(end) and final.feeds(end)]
    return found, [final], _BY_WIDTH


def _items(listed: Sequence[Listed], modules: Iterable[nn.Module]) -> frozenset[Listed]:
    """The parameters inside these modules."""
    inside = set(modules)
    return frozenset(item for item in listed for owner in item.owners if not inside.isdisjoint(m for _, m in owner.around))


def _list(paths: Sequence[str]) -> str:
    return " and ".join(map(repr, paths))


def _layers(listed: Iterable[Listed]) -> list[Layer]:
    """The layers in the order in which the model registers them."""
    owned = sorted(((owner, item) for item in listed for owner in item.owners), key=lambda pair: pair[0].order)
    embeddings = {item for owner, item in owned if isinstance(owner.layer, nn.Embedding | nn.EmbeddingBag)}
    found: dict[nn.Module, Layer] = {}
    for owner, item in owned:
        seen = layout(owner, item.parameter)
        within_attention = any(isinstance(module, nn.MultiheadAttention) for _, module in owner.around[:-1])
        if seen.reason or owner.factor or item.parameter.ndim - seen.stacked < 2 or within_attention:
            continue
        path, module = owner.unit[-1]
        inputs, outputs = _widths(owner, item, seen.output, seen.stacked)
        spatial = is_layer(owner.layer) and item.parameter.ndim > 2 and not isinstance(owner.layer, nn.Bilinear)
        layer = Layer(path, module, owner.unit, inputs, outputs, is_layer(owner.layer), spatial, item in embeddings)
        found.setdefault(module, layer)
    return list(found.values())


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
    """The outermost module around the layer with such a name, or its child if it lists several; not inside of a list."""
    for index, (path, module) in enumerate(layer.around[1:], 1):
        parent = layer.around[index - 1][1]
        step = path.rpartition(".")[2]
        if isinstance(parent, nn.ModuleList) or _is_one_of_many(parent, module):
            return None
        if names.fullmatch(step.lower()) and not _ATTENTION & {name for name, _ in parent.named_children()}:
            several = isinstance(module, nn.ModuleList | nn.ModuleDict) and layer.around[index + 1 :]
            return layer.around[index + 1][1] if several else module
    return None


def _is_one_of_many(parent: nn.Module, module: nn.Module) -> bool:
    if not isinstance(parent, nn.Sequential) or is_layer(module) or type(module) in _PLAIN:
        return False
    return sum(type(child) is type(module) for child in parent.children()) > 1


def _is_inner(layer: Layer) -> bool:
    return any(step in _INNER for step in layer.path.split("."))


def _outermost(heads: Iterable[Layer]) -> list[Layer]:
    """Without those that feed another one further out: the dense layer inside a model's `head` feeds its decoder."""
    found = list(dict.fromkeys(heads))
    return [one for one in found if not any(one.feeds(other) and len(other.around) < len(one.around) for other in found)]


def _kind(module: nn.Module) -> tuple[object, ...]:
    """Its class and the shapes of its parameters: blocks of one kind are equal."""
    return type(module), *(parameter.shape for parameter in module.parameters())
