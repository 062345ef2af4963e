"""Finds the output heads of a model: by evidence, by an example, or as the last layer.

The evidence is names, ties to an embedding, the order of registration, and widths that fit.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from torch import nn

from egalitarian.select.clues import Clues, Layer, layers_of, outermost
from egalitarian.select.example import Example, Reached, reached
from egalitarian.select.layouts import is_layer
from egalitarian.select.listing import Listed

_NAMES = re.compile(
    r"(.*_)?(heads?|classifiers?|logits|policy|critics?|actors?|scores?|predictors?|predictions?)"
    r"|predict(_.*)?|value|qa_outputs|proj_out|seq_relationship|vocab_projector|generator|discriminator"
)
"""Names of heads, and of modules whose last layer is a head."""
_LIKELY = re.compile(
    r"fc|outc?|final(_layer)?|last|pi|v|readout|decoder|(fc_|final_)?out(put)?s?(_(layer|conv|proj))?|(.*_)?projection"
)
"""Names of many heads, but of other layers as well."""
_BY_WIDTH = "by the widths of the layers, though {} {} registered last"
_BY_NAME = "for its name, though {} {} registered last"


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
    clues = Clues(layers_of(listed))
    if clues.is_alone:
        return Heads()
    verdict = _judged(clues)
    items = _items(listed, (layer.module for layer in verdict.heads))
    rivals, names, why = _items(listed, (layer.module for layer in verdict.rivals)), verdict.rivals, verdict.why
    mine, others = [layer.path for layer in verdict.heads], [layer.path for layer in names]
    if mine and not why and not verdict.certain and (unrecognised := clues.unrecognised(verdict.heads)):
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
    clues = Clues(layers_of(listed))
    weights = {item.parameter: item for item in listed if item.parameter.ndim > 1 and item.owners}
    seen = reached(model, [layer.module for layer in clues.layers], weights, example)
    if clues.is_alone:
        return Heads()
    heads = [head.module for head in _reached(clues, seen) if head.simple]
    return Heads(_items(listed, heads) | {weights[weight] for weight in seen.weights if weight in weights})


def last_layer(listed: Sequence[Listed]) -> Heads:
    """The last registered Linear or convolution, unless it is the only one."""
    owners = sorted((owner for item in listed for owner in item.owners), key=lambda owner: owner.order)
    layers = [module for owner in owners for _, module in owner.around if is_layer(module)]
    return Heads(_items(listed, layers[-1:])) if len(set(layers)) > 1 else Heads()


def _reached(clues: Clues, seen: Reached) -> list[Layer]:
    """The heads among the layers that reach the outputs. If autograd reached none, the layer that was called last."""
    layers = {layer.module: layer for layer in clues.layers}
    known = _judged(clues).heads
    final = [layers[module] for module in seen.layers]
    called = [layers[module] for module in seen.called]
    if not final and not seen.weights:
        return [layer for layer in called[-1:] if layer in clues.ends]
    free = [layer for layer in final if layer in known or layer.module not in seen.inner]
    heads = [layer for layer in free if layer in clues.ends] + _beside(clues, called, free)
    if not heads and len(final) == 1 and not seen.inner.intersection(seen.layers):
        heads = final
    unused = [layer for layer in known if layer not in final and layer.module not in seen.inner]
    return heads + unused


def _beside(clues: Clues, called: list[Layer], free: list[Layer]) -> list[Layer]:
    """The last layers of equal blocks, if all of them that ran reach the model's outputs."""
    groups: dict[object, list[Layer]] = {}
    for layer in clues.layers:
        for (_, parent), (path, block) in pairwise(layer.around):
            if isinstance(parent, nn.ModuleList) and block is not layer.module and layer not in clues.ends:
                groups.setdefault((parent, layer.path.removeprefix(path)), []).append(layer)
                break
    used = [(group, set(called).intersection(group)) for group in groups.values()]
    return [layer for group, ran in used if len(ran) > 1 and ran <= set(free) for layer in group]


def _judged(clues: Clues) -> _Verdict:
    """The heads by evidence, with layers that look like them, and their rivals."""
    verdict = _found(clues)
    heads = sorted(clues.alike(verdict.heads), key=lambda layer: layer.order)
    rivals = [layer for layer in verdict.rivals if layer not in heads]
    why = verdict.why if rivals or not verdict.rivals else ""
    if heads and not why and (rivals := clues.doubtful(heads)):
        why = "by names and order, though nothing takes the outputs of {} either"
    return _Verdict(heads, rivals, why, verdict.certain)


def _found(clues: Clues) -> _Verdict:
    last, named = clues.last, clues.named(_NAMES)
    tied = [layer for layer in clues.layers if layer.tied and layer.simple]
    if certain := outermost([*tied, *named]):
        return _among_named(clues, certain)
    likely = [layer for layer in outermost(clues.named(_LIKELY)) if layer in clues.ends]
    if last is None:
        sure = [layer for layer in likely if clues.ends_here(layer)]
        return _Verdict(sure, []) if sure else _fed(clues)
    if last in likely or not likely:
        rivals = [end for end in clues.ends if clues.ends_here(end) and last.feeds(end)]
        if rivals and not likely and not clues.ends_here(last):
            return _Verdict(rivals, [last], _BY_WIDTH)
        return _Verdict([last], [])
    if any(last.feeds(layer) for layer in likely):
        if all(clues.ends_here(layer) for layer in likely):
            return _Verdict(likely, [])
        return _Verdict(likely, [last], _BY_NAME)
    return _Verdict([last], likely, "as what is registered last, though {} {} named like a head")


def _among_named(clues: Clues, named: list[Layer]) -> _Verdict:
    """The named heads. One that feeds the last layer is no head but a trunk with the name of one."""
    last = clues.last
    if last is None or any(last.feeds(layer) for layer in named):
        return _Verdict(named, [], certain=True)
    trunks = [layer for layer in named if layer.feeds(last) and not layer.tied]
    if trunks and clues.ends_here(last):
        heads = [layer for layer in named if layer not in [*trunks, last]]
        return _Verdict([*heads, last], trunks, "as what is registered last, though {} {} named like a head", True)
    return _Verdict(named, [last], _BY_NAME, True)


def _fed(clues: Clues) -> _Verdict:
    """A head that is registered before the layers that feed it, such as repeated blocks, or that ends those blocks."""
    if not clues.layers:
        return _Verdict([], [])
    final = clues.layers[-1]
    found = [end for end in clues.ends if clues.ends_here(end) and final.feeds(end)]
    if found:
        return _Verdict(found, [final], _BY_WIDTH)
    return _Verdict(clues.block_ends(), [], "by the widths of the layers, though repeated blocks seldom end in one")


def _items(listed: Sequence[Listed], modules: Iterable[nn.Module]) -> frozenset[Listed]:
    """The parameters inside these modules."""
    inside = set(modules)
    return frozenset(item for item in listed for owner in item.owners if not inside.isdisjoint(m for _, m in owner.around))


def _list(paths: Sequence[str]) -> str:
    return " and ".join(map(repr, paths))
