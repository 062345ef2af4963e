"""Finds the output heads of a model: by evidence, by an example, or as the last layer.

The evidence is names, ties to an embedding, the order of registration, and widths that fit.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from torch import nn

from egalitarian.select.example import Example, Reached, reached
from egalitarian.select.layers import PLAIN, Graph, Layer, attends
from egalitarian.select.layouts import down_to_layer, is_layer
from egalitarian.select.listing import Listed, Owner

_NAMES = re.compile(
    r"(.*_)?(heads?|classifiers?|logits|policy|critics?|actors?|scores?|predictors?|predictions?)"
    r"|predict(_.*)?|value|qa_outputs|proj_out|seq_relationship|vocab_projector|generator|discriminator",
    re.IGNORECASE,
)
"""Names of heads, and of modules whose last layer is a head."""
_LIKELY = re.compile(
    r"fc|outc?|final(_layer)?|last|pi|v|readout|decoder|(fc_|final_)?out(put)?s?(_(layer|conv|proj))?|(.*_)?projection",
    re.IGNORECASE,
)
"""Names of many heads, but of other layers as well."""
_MAKERS = re.compile(r"((net_?)?G|gen|[Gg]enerator)(_?[A-Z0-9]+)?")
_JUDGES = re.compile(r"((net_?)?D|disc|[Dd]iscriminator|[Cc]ritic)(_?[A-Z0-9]+)?")
"""Names of two networks that play against each other. Both end in a head, though the one feeds the other."""
_BY_WIDTH = "by the widths of the layers, though {} {} registered last"
_BY_NAME = "for its name, though {} {} registered last"
_BY_ORDER = "as what is registered last, though {} {} named like a head"


@dataclass(frozen=True)
class Heads:
    """The parameters of the output heads, and the doubt about them if there is one."""

    items: frozenset[Listed] = frozenset()
    rivals: frozenset[Listed] = frozenset()
    """Parameters that may be a head instead, or as well."""
    doubt: str = ""
    """One sentence that ends with the argument that settles the question; empty without a doubt."""


@dataclass(frozen=True)
class _Verdict:
    """The layers that are heads, and their rivals: layers that may be heads instead, or as well."""

    heads: list[Layer]
    rivals: list[Layer]
    why: str = ""
    """What speaks for the heads and for the rivals, to fill into a sentence; empty without rivals."""
    certain: bool = False
    """Whether a name or a tie decided."""


def heads_of(listed: Sequence[Listed]) -> Heads:
    """The heads by evidence. A model with a single layer, or one that ends in repeated blocks, has none."""
    graph = Graph(listed)
    if _is_alone(graph):
        return Heads()
    verdict = _judged(graph)
    items = _items(listed, (layer.module for layer in verdict.heads))
    rivals, names, why = _items(listed, (layer.module for layer in verdict.rivals)), verdict.rivals, verdict.why
    mine, others = [layer.path for layer in verdict.heads], [layer.path for layer in names]
    if mine and not why and not verdict.certain and (unrecognised := _unrecognised(graph, verdict.heads)):
        rivals, others = frozenset(unrecognised), [item.name for item in unrecognised]
        why = "by the order of the layers, though {} may take its outputs"
    if not mine or not why:
        return Heads(items)
    argument = mine if mine[1:] else mine[0]
    doubt = f"the output head is taken to be {_list(mine)} {why.format(_list(others), 'are' if others[1:] else 'is')}"
    return Heads(items, rivals, f"{doubt}; settle it with head={argument!r} or example=")


def heads_by_example(model: nn.Module, listed: Sequence[Listed], example: Example) -> Heads:
    """The heads by one forward pass: layers whose outputs reach the model's outputs and enter no other layer.

    Heads by evidence that the pass does not use stay heads.
    """
    graph = Graph(listed)
    weights = {item.parameter: item for item in listed if item.parameter.ndim > 1 and item.owners}
    seen = reached(model, [layer.module for layer in graph.layers], weights, example)
    if _is_alone(graph):
        return Heads()
    heads = [head.module for head in _reached(graph, seen) if head.simple]
    return Heads(_items(listed, heads) | {weights[weight] for weight in seen.weights if weight in weights})


def last_layer(listed: Sequence[Listed]) -> Heads:
    """The last registered Linear or convolution, unless it is the only one."""
    owners = sorted((owner for item in listed for owner in item.owners), key=lambda owner: owner.order)
    layers = [end for owner in owners if is_layer(end := down_to_layer(owner.around)[-1][1])]
    return Heads(_items(listed, layers[-1:])) if len(set(layers)) > 1 else Heads()


def _reached(graph: Graph, seen: Reached) -> list[Layer]:
    """The heads among the layers that reach the outputs. If autograd reached none, the layer that was called last."""
    layers = {layer.module: layer for layer in graph.layers}
    verdict = _judged(graph)
    final = [layers[module] for module in seen.layers]
    called = [layers[module] for module in seen.called]
    if not final and not seen.weights:
        return [layer for layer in called[-1:] if layer in graph.ends]
    free = [layer for layer in final if (layer in verdict.heads and not verdict.why) or layer.module not in seen.inner]
    heads = [layer for layer in free if layer in graph.ends] + _parallel_ends(graph, called, free)
    if not heads and len(final) == 1 and not seen.inner.intersection(seen.layers):
        heads = final
    return heads + [layer for layer in verdict.heads if layer not in final and layer.module not in seen.inner]


def _parallel_ends(graph: Graph, called: list[Layer], free: list[Layer]) -> list[Layer]:
    """The last layers of equal blocks, if all of them that ran reach the model's outputs."""
    groups: dict[object, list[Layer]] = {}
    for layer in graph.layers:
        for (_, parent), (path, block) in pairwise(layer.around):
            if isinstance(parent, nn.ModuleList) and block is not layer.module and layer not in graph.ends:
                groups.setdefault((parent, layer.path.removeprefix(path)), []).append(layer)
                break
    used = [(group, set(called).intersection(group)) for group in groups.values()]
    return [layer for group, ran in used if len(ran) > 1 and ran <= set(free) for layer in group]


def _judged(graph: Graph) -> _Verdict:
    """The heads by evidence, with layers that look like them, and their rivals."""
    verdict = _found(graph)
    heads = sorted(graph.alike(verdict.heads), key=lambda layer: layer.order)
    rivals = [layer for layer in verdict.rivals if layer not in heads]
    why = verdict.why if rivals or not verdict.rivals else ""
    if heads and not why and (rivals := graph.doubtful(heads)):
        why = "by names and order, though nothing takes the outputs of {} either"
    if heads and not why and graph.may_chain(heads):
        why = "by the widths of the layers, though each block may take a part of what the one before puts out"
    depth = max((len(layer.around) for layer in verdict.heads), default=0)
    if not why and (deeper := [layer for layer in heads if layer not in verdict.heads and len(layer.around) > depth]):
        rivals, why = deeper, "as layers that are alike, though {} {} inside of a part, whose end may be used in the model"
    return _Verdict(heads, rivals, why, verdict.certain)


def _found(graph: Graph) -> _Verdict:
    last, named = _last(graph), _named(graph, _NAMES)
    tied = [layer for layer in graph.layers if layer.tied and layer.simple]
    makers, judges = _named(graph, _MAKERS), _named(graph, _JUDGES)
    players = makers + judges if makers and judges else []
    if certain := list(dict.fromkeys([*players, *_outermost(graph, [*tied, *named])])):
        return _among_named(graph, certain, [*tied, *players])
    likely = [layer for layer in _outermost(graph, _named(graph, _LIKELY)) if layer in graph.ends]
    final = graph.layers[-1] if last is None else last
    fed = [end for end in graph.ends if graph.ends_here(end) and graph.leads_to(final, end)]
    if last is None:  # the head is registered before what feeds it, such as repeated blocks, or ends those blocks
        if sure := [layer for layer in likely if graph.ends_here(layer)]:
            return _Verdict(sure, [])
        blocks = "by the widths of the layers, though repeated blocks seldom end in one"
        return _Verdict(fed, [final], _BY_WIDTH) if fed else _Verdict(graph.block_ends(), [], blocks)
    if not likely and fed and not graph.ends_here(last):
        return _Verdict(fed, [last], _BY_WIDTH)
    if last in likely or not likely:
        return _Verdict([last], [])
    if any(graph.leads_to(last, layer) for layer in likely):
        rivals = [] if all(graph.ends_here(layer) for layer in likely) else [last]
        return _Verdict(likely, rivals, _BY_NAME if rivals else "")
    return _Verdict([last], likely, _BY_ORDER)


def _among_named(graph: Graph, named: list[Layer], sure: list[Layer]) -> _Verdict:
    """The named heads. One that feeds the last layer is no head but a trunk with the name of one, unless it is sure."""
    last = _last(graph)
    if last is None or any(graph.leads_to(last, layer) for layer in named):
        return _Verdict(named, [], certain=True)
    trunks = [layer for layer in named if graph.feeds(layer, last) and layer not in sure]
    if trunks and graph.ends_here(last):
        heads = [layer for layer in named if layer not in [*trunks, last]]
        return _Verdict([*heads, last], trunks, _BY_ORDER, True)
    return _Verdict(named, [last], _BY_NAME, True)


def _is_alone(graph: Graph) -> bool:
    """Whether the model has at most one layer, and no other parameters that may belong to a layer."""
    return not graph.layers or (len(graph.layers) == 1 and not graph.others)


def _last(graph: Graph) -> Layer | None:
    """The layer that is registered last, if it can be a head."""
    return graph.outer[-1] if graph.outer and graph.outer[-1] in graph.ends else None


def _named(graph: Graph, names: re.Pattern[str]) -> list[Layer]:
    """The last layer of every module with such a name. A layer that has such a name itself is preferred."""
    parts: dict[nn.Module, Layer] = {}
    for layer in (each for each in graph.outer if each.simple):
        module = _part(layer, names)
        if module is not None and (module not in parts or layer.has_name(names) >= parts[module].has_name(names)):
            parts[module] = layer
    return list(dict.fromkeys(parts.values()))


def _outermost(graph: Graph, heads: Iterable[Layer]) -> list[Layer]:
    """The layers without those that feed another one further out, as a dense layer inside `head` feeds the decoder."""
    found = list(dict.fromkeys(heads))
    return [one for one in found if not any(_is_outside(other, one) and graph.leads_to(one, other) for other in found)]


def _is_outside(outer: Layer, inner: Layer) -> bool:
    """Whether the module that holds the outer one is around what holds the inner one."""
    return len(outer.around) < len(inner.around) and outer.around[:-1] == inner.around[: len(outer.around) - 1]


def _part(layer: Layer, names: re.Pattern[str]) -> nn.Module | None:
    """The outermost module with such a name around the layer, or its child if it lists modules. None inside a list."""
    for index, (path, module) in enumerate(layer.around[1:], 1):
        parent = layer.around[index - 1][1]
        if isinstance(parent, nn.ModuleList) or _is_one_of_many(parent, module):
            return None
        if names.fullmatch(path.rpartition(".")[2]) and not attends(parent):
            several = isinstance(module, nn.ModuleList | nn.ModuleDict) and layer.around[index + 1 :]
            return layer.around[index + 1][1] if several else module
    return None


def _is_one_of_many(parent: nn.Module, module: nn.Module) -> bool:
    if not isinstance(parent, nn.Sequential) or is_layer(module) or type(module) in PLAIN:
        return False
    return sum(type(child) is type(module) for child in parent.children()) > 1


def _unrecognised(graph: Graph, heads: list[Layer]) -> list[Listed]:
    """Matrices of unrecognised modules that may take the outputs of one of these heads. Each may be a head instead."""
    pairs = ((owner, item, head) for owner, item in graph.others for head in heads)
    return list(dict.fromkeys(item for owner, item, head in pairs if _may_end(graph, owner, item, head)))


def _may_end(graph: Graph, owner: Owner, item: Listed, head: Layer) -> bool:
    """Whether the matrix can come after the head: by its owner's order, by a module around both, or as an embedding."""
    shape = item.parameter.shape
    if len(shape) != 2 or 1 in shape or head.outputs not in shape or not item.parameter.is_floating_point():
        return False
    if isinstance(owner.layer, nn.Embedding):
        return shape[1] == head.outputs
    holds = any(module is owner.module for _, module in head.around)
    return (owner.order > head.order or holds) and not graph.is_repeated(owner.around)


def _items(listed: Sequence[Listed], modules: Iterable[nn.Module]) -> frozenset[Listed]:
    """The parameters inside these modules."""
    inside = set(modules)
    return frozenset(item for item in listed for owner in item.owners if not inside.isdisjoint(m for _, m in owner.around))


def _list(paths: Sequence[str]) -> str:
    return " and ".join(map(repr, paths))
