"""The output head, by one forward pass: what the model's outputs are made of without passing another layer."""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from egalitarian.select.listing import unwrapped

Example = Tensor | tuple[Any, ...] | Mapping[str, Any]
_PRODUCT = re.compile("mm|mv|linear|conv", re.IGNORECASE)
"""Nodes of the autograd graph that multiply by a matrix."""
_DEPTH = 4
"""How deep outputs are searched for tensors."""


@dataclass(frozen=True)
class Reached:
    """What a forward pass has shown."""

    layers: list[nn.Module]
    """Those whose outputs reach the model's without passing another layer."""
    weights: frozenset[Tensor]
    """Those that the model multiplies by without calling their layer, as a decoder tied to an encoder does."""
    called: list[nn.Module]
    """All layers, in the order of their last calls."""


def reached(model: nn.Module, layers: Sequence[nn.Module], weights: Container[Tensor], example: Example) -> Reached:
    """Runs the model once and walks back from its outputs to the first layers, or products with weights, on every way.

    The pass runs in eval mode and leaves modes, buffers, gradients and random numbers as they were.
    """
    args, kwargs = _arguments(example)
    marks: dict[Tensor, nn.Module] = {}
    called: dict[nn.Module, None] = {}

    def mark(module: nn.Module, _inputs: object, output: object) -> object:
        called.pop(module, None)
        called[module] = None

        def marked(value: object) -> object:
            if not isinstance(value, Tensor) or not value.is_floating_point():
                return value
            leaf = value.detach().requires_grad_()  # a graph ends here: what comes before the layer does not count
            marks[leaf] = module
            return leaf.clone()  # a leaf must not be written in place, and the next layer may do that

        return tree_map(marked, output)

    with _untouched(model), ExitStack() as stack:
        for layer in layers:
            handle = layer.register_forward_hook(mark)
            stack.callback(handle.remove)
        try:
            outputs = unwrapped(model)(*args, **kwargs)
        except Exception as error:
            raise ValueError(
                f"example must be an input of the model, got one with which its forward pass raises "
                f"{type(error).__name__}: {error}; pass a tensor, a tuple of arguments or a dict of keyword arguments"
            ) from error
    leaves = frozenset(_leaves(_tensors(outputs), weights))
    found = {marks[leaf] for leaf in leaves if leaf in marks}
    direct = frozenset(leaf for leaf in leaves if leaf in weights)
    return Reached([layer for layer in called if layer in found], direct, list(called))


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
    buffers = [
        (module, name, buffer, buffer.detach().clone())
        for module, _ in modes
        for name, buffer in module.named_buffers(recurse=False)
    ]
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
    """Items of a container or attributes of an object; of those with names the logits alone, if there are any."""
    if isinstance(outputs, list | tuple | set):
        return outputs
    named = outputs if isinstance(outputs, Mapping) else getattr(outputs, "__dict__", {})
    return [value for name, value in named.items() if str(name).endswith("logits")] or named.values()


def _leaves(outputs: Iterator[Tensor], weights: Container[Tensor]) -> Iterator[Tensor]:
    """The leaves of the autograd graph, and the weights that it multiplies by; it is not followed behind such a product."""
    waiting: list[Any] = []
    for output in outputs:
        if output.grad_fn is not None:
            waiting.append(output.grad_fn)
        elif output not in weights:
            yield output
    seen = set(waiting)
    while waiting:
        node = waiting.pop()
        if hasattr(node, "variable") and node.variable not in weights:
            yield node.variable
        inputs = {each for each, _ in node.next_functions if each is not None}
        leaves = map(_leaf, inputs) if _PRODUCT.search(node.name()) else ()
        factors = [leaf for leaf in leaves if leaf is not None and leaf in weights]
        yield from factors
        fresh = set() if factors else inputs - seen
        seen |= fresh
        waiting += fresh


def _leaf(node: Any) -> Tensor | None:
    """The leaf at the end of operations of one argument, such as a transposition."""
    while not hasattr(node, "variable"):
        if len(node.next_functions) != 1 or node.next_functions[0][0] is None:
            return None
        node = node.next_functions[0][0]
    return node.variable  # type: ignore[no-any-return]
