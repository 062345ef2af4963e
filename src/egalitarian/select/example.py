"""Finds, by one forward pass, the layers whose outputs reach the model's outputs without passing another layer."""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map

from egalitarian.select.listing import unwrapped

Example = Tensor | tuple[Any, ...] | Mapping[str, Any]
_PRODUCT = re.compile("mm|mv|linear|conv", re.IGNORECASE)
"""Nodes of the autograd graph that multiply by a matrix."""
_LOOKUP = re.compile("embedding|index|gather", re.IGNORECASE)
"""Nodes that choose some rows of a matrix."""
_HIDDEN = re.compile(
    r"last_hidden_state|(.*_)?hidden(_states?)?|past_key_values|(.*_)?attentions|pooler_output|(.*_)?cache"
)
"""Names of outputs that are no predictions but come from hidden layers."""
_DEPTH = 4
"""How many levels of nested outputs are searched for tensors."""


@dataclass(frozen=True)
class Reached:
    """What a forward pass has shown."""

    layers: list[nn.Module]
    """Layers whose outputs reach the model's outputs without passing another layer."""
    weights: frozenset[Tensor]
    """Weights that the model multiplies by without calling their layer, such as a decoder tied to an embedding."""
    inner: frozenset[nn.Module]
    """Layers whose outputs also enter other layers."""
    called: list[nn.Module]
    """All layers, in the order of their last calls."""


def reached(model: nn.Module, layers: Sequence[nn.Module], weights: Container[Tensor], example: Example) -> Reached:
    """Runs the model once, and follows every path back from its outputs to the first layer or product with a weight.

    The pass runs in eval mode and leaves modes, buffers, gradients and torch's random numbers as they were.
    """
    args, kwargs = _arguments(example)
    marks: dict[Tensor, nn.Module] = {}
    called: dict[nn.Module, None] = {}
    taken = _Walk(weights)

    def take(_module: nn.Module, args: object, kwargs: object) -> None:
        taken.follow(value for value in tree_leaves((args, kwargs)) if isinstance(value, Tensor))

    def mark(module: nn.Module, _inputs: object, output: object) -> object:
        called.pop(module, None)
        called[module] = None

        def marked(value: object) -> object:
            if not isinstance(value, Tensor) or not value.is_floating_point():
                return value
            leaf = value.detach().requires_grad_()  # cuts the graph: layers before this one do not count
            marks[leaf] = module
            return leaf.clone()  # a leaf must not be written in place, and the next layer may do that

        return tree_map(marked, output)

    with _untouched(model), ExitStack() as stack:
        for layer in layers:
            stack.callback(layer.register_forward_pre_hook(take, with_kwargs=True).remove)
            stack.callback(layer.register_forward_hook(mark).remove)
        try:
            outputs = unwrapped(model)(*args, **kwargs)
        except Exception as error:
            raise ValueError(
                f"example must be an input of the model, got one with which its forward pass raises "
                f"{type(error).__name__}: {error}; pass a tensor, a tuple of arguments or a dict of keyword arguments, "
                f"on the model's device"
            ) from error
    walk = _Walk(weights)
    walk.follow(_tensors(outputs))
    taken.follow_nodes(walk.behind)
    while fresh := taken.behind - taken.done:
        taken.follow_nodes(fresh)
    found = {marks[leaf] for leaf in walk.leaves if leaf in marks}
    direct = {weight for node, factors in walk.products.items() if node not in taken.products for weight in factors}
    inner = frozenset(marks[leaf] for leaf in taken.leaves if leaf in marks)
    return Reached([layer for layer in called if layer in found], frozenset(direct), inner, list(called))


def _arguments(example: Example) -> tuple[tuple[Any, ...], dict[str, Any]]:
    if not isinstance(example, Tensor | tuple | Mapping):
        raise TypeError(
            f"example must be a tensor, a tuple of arguments or a dict of keyword arguments, got {type(example).__name__}; "
            f"for one argument that is no tensor pass (argument,)"
        )

    def fresh(value: object) -> object:
        return value.clone() if isinstance(value, Tensor) and value.is_inference() else value

    with torch.inference_mode(False):
        if isinstance(example, Mapping):
            return (), {name: tree_map(fresh, value) for name, value in example.items()}
        return tuple(tree_map(fresh, value) for value in (example if isinstance(example, tuple) else (example,))), {}


@contextmanager
def _untouched(model: nn.Module) -> Iterator[None]:
    """Grad mode on and eval mode for all modules; afterwards everything is as before."""
    modes = [(module, module.training) for module in model.modules()]
    held = ((module, *named) for module, _ in modes for named in module.named_buffers(recurse=False))
    buffers = [(module, name, buffer, buffer.detach().clone()) for module, name, buffer in held]
    devices = {tensor.device.index for tensor in model.parameters() if tensor.is_cuda}
    with torch.random.fork_rng([index for index in devices if index is not None]), torch.inference_mode(False):
        try:
            for module, _ in modes:
                module.training = False
            with torch.enable_grad():
                yield
        finally:
            for module, training in modes:
                module.training = training
            with torch.no_grad():
                for module, name, buffer, before in buffers:
                    setattr(module, name, buffer.copy_(before))


def _tensors(outputs: object, depth: int = _DEPTH) -> Iterator[Tensor]:
    """The tensors of whatever a forward pass returns."""
    if isinstance(outputs, Tensor):
        yield outputs
    elif depth and not isinstance(outputs, str | bytes | type | nn.Module):
        for part in _parts(outputs):
            yield from _tensors(part, depth - 1)


def _parts(outputs: object) -> Iterable[object]:
    """Items of a container or attributes of an object. If one is called logits, hidden states are left out."""
    if isinstance(outputs, list | tuple | set):
        return outputs
    named = outputs if isinstance(outputs, Mapping) else getattr(outputs, "__dict__", {})
    if not any(str(name).endswith("logits") for name in named):
        return named.values()
    return [value for name, value in named.items() if not _HIDDEN.fullmatch(str(name))]


class _Walk:
    """A walk back through the autograd graph, to its leaves and to products with weights."""

    def __init__(self, weights: Container[Tensor]) -> None:
        self._weights = weights
        self.leaves: set[Tensor] = set()
        self.products: dict[Any, set[Tensor]] = {}
        """The products at which the walk stops, with their weights."""
        self.behind: set[Any] = set()
        """The other factors of these products."""
        self.done: set[Any] = set()

    def follow(self, outputs: Iterable[Tensor]) -> None:
        nodes = set()
        for output in outputs:
            if output.grad_fn is not None:
                nodes.add(output.grad_fn)
            elif output not in self._weights:
                self.leaves.add(output)
        self.follow_nodes(nodes)

    def follow_nodes(self, nodes: set[Any]) -> None:
        waiting = list(nodes - self.done)
        self.done |= nodes
        while waiting:
            node = waiting.pop()
            if hasattr(node, "variable") and node.variable not in self._weights:
                self.leaves.add(node.variable)
            inputs = {each for each, _ in node.next_functions if each is not None}
            factors = {each: _made_of(each, self._weights) for each in inputs} if _PRODUCT.search(node.name()) else {}
            if weights := {weight for found in factors.values() for weight in found}:
                self.products[node] = weights
                self.behind |= {each for each in inputs if not factors[each]}
                continue
            waiting += inputs - self.done
            self.done |= inputs


def _made_of(node: Any, weights: Container[Tensor]) -> set[Tensor]:
    """The weights that a factor is computed from, entry by entry; none if it depends on anything but parameters."""
    found, seen, waiting = set(), {node}, [node]
    while waiting:
        node = waiting.pop()
        if hasattr(node, "variable"):
            if node.variable in weights:
                found.add(node.variable)
            elif not isinstance(node.variable, nn.Parameter):
                return set()
        elif _PRODUCT.search(node.name()) or _LOOKUP.search(node.name()):
            return set()
        fresh = {each for each, _ in node.next_functions if each is not None} - seen
        seen |= fresh
        waiting += fresh
    return found
