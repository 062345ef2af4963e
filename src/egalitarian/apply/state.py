"""What a chain of transforms keeps from one step to the next, by parameter name."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from egalitarian.checks import check_mapping
from egalitarian.select import Entry
from egalitarian.transforms import ElementwiseTransform, Memory, Transform

Tensors = Mapping[str, Mapping[str, Tensor]]
"""By parameter name, then by `"<index of the transform>.<key>"`."""


@dataclass(frozen=True)
class State:
    """What a chain of transforms keeps from one step to the next: returned by `equalize_` and passed to its next call.

    Exact EGD keeps only the step count. A call returns a new state and leaves the old one unchanged.
    Replaying a CUDA graph overwrites the tensors that it captured.

    >>> from egalitarian import Momentum, equalize_, matrices
    >>> model, state = torch.nn.Linear(3, 2, bias=False), State()
    >>> for _ in range(2):
    ...     model(torch.ones(4, 3)).sum().backward()
    ...     state = equalize_(matrices(model), Momentum(), state=state)
    >>> state.step, list(state.tensors)
    (2, ['weight'])
    """

    step: int = 0
    """Number of steps made so far."""
    tensors: Mapping[str, Mapping[str, Tensor]] = field(default_factory=dict)
    """By parameter name, then by `"<index of the transform>.<key>"`, for example `"0.mean"`."""


def initial_memory(entries: Iterable[Entry], chain: Sequence[Transform], stack: int | None) -> dict[str, Memory]:
    """The memory of every parameter before the first step, so that a checkpoint has its full shape from the start."""
    memories = {
        entry.name: start(entry, chain, torch.empty_like(entry.parameter, dtype=gradient_dtype(entry.parameter)), stack)
        for entry in entries
    }
    return {name: memory for name, memory in memories.items() if memory}


def start(entry: Entry, chain: Sequence[Transform], grad: Tensor, stack: int | None) -> Memory:
    """The memory of one parameter before the first step."""
    return {
        f"{index}.{key}": value
        for index, link in enumerate(chain)
        if isinstance(link, ElementwiseTransform) and link.acts_on(entry.parameter)
        for key, value in link.start(grad, stack).items()
    }


def gradient_dtype(parameter: Tensor) -> torch.dtype:
    """The dtype of the parameter, unless its `grad_dtype` is another."""
    return getattr(parameter, "grad_dtype", None) or parameter.dtype


def copied_in_place(before: State, after: State) -> State:
    """The new state in the tensors of the old one, where a captured CUDA graph reads it at the next replay.

    Raises:
        RuntimeError: the old one lacks a tensor: the graph would start it again at every replay.
    """
    for name, memory in after.tensors.items():
        if not memory.keys() <= before.tensors.get(name, {}).keys():
            raise RuntimeError(
                f"the memory of {name!r} must exist before a CUDA graph is captured, got none; make one step before it"
            )
        for key, value in memory.items():
            before.tensors[name][key].copy_(value)
    return State(after.step, before.tensors)


def loaded_memory(current: Tensors, loaded: Tensors) -> dict[str, dict[str, Tensor]]:
    """A copy of the loaded memory, on the devices and in the dtypes of the current one.

    Raises:
        TypeError: the loaded one holds something else than dense tensors of real numbers.
        ValueError: the two hold different tensors.
    """

    def shapes(memory: Tensors) -> dict[tuple[str, str], tuple[int, ...]]:
        return {(name, key): tuple(tensor.shape) for name, kept in memory.items() for key, tensor in kept.items()}

    _check_memory(loaded)
    differing = sorted(set(shapes(current).items()) ^ set(shapes(loaded).items()))
    if differing:
        (name, key), shape = differing[0]
        raise ValueError(
            f"state_dict must hold the same tensors as the attachment, got {len(differing)} that differ, first {key!r} of "
            f"{name!r} with shape {shape}; attach to the same model, param groups and transform"
        )
    return {
        name: {key: value.detach().clone().to(current[name][key]) for key, value in memory.items()}
        for name, memory in loaded.items()
    }


def _check_memory(loaded: Mapping[str, Any]) -> None:
    for name, kept in loaded.items():
        check_mapping(f"the memory of {name!r}", kept, "load what state_dict() returned")
        for key, value in kept.items():
            if not isinstance(value, Tensor) or value.layout != torch.strided or value.is_complex() or value.is_meta:
                got = f"{value.layout} of {value.dtype} on {value.device}" if isinstance(value, Tensor) else repr(value)
                raise TypeError(
                    f"{key!r} of {name!r} must be a dense, real tensor, got {got}; load what state_dict() returned"
                )
