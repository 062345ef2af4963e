"""The two kinds of transform, and chains of them. To add one, subclass a kind; see `matrix.py` and `elementwise.py`."""

from __future__ import annotations

import contextlib
import functools
import re
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import MISSING, Field, fields, is_dataclass
from typing import Any, ClassVar, NamedTuple, TypeVar, get_args

import torch
from torch import Tensor

from egalitarian.kernels import Precision, TierChoice
from egalitarian.select import Plan

T = TypeVar("T")
Memory = dict[str, Tensor]

RENAMED = {
    "NeuronNorm(": "RowNorm(",
    "method='products'": "method='polynomial'",
    "method='inverses'": "method='rational'",
}
"""Old spellings in the text of a transform. A state that was saved under one is still loaded."""
_OLD = re.compile("|".join(map(re.escape, RENAMED)))


class Site(NamedTuple):
    """What a matrix transform gets besides the matrix."""

    name: str
    step: int
    compute: Precision
    """The precision in which the gradient was computed, as far as the caller can tell."""
    half: bool = False
    """Whether the forward pass ran under autocast to half precision, as far as the caller can tell."""


class _Value:
    """Its repr is the call that makes it: only fields that differ from their defaults."""

    def __repr__(self) -> str:
        shown: list[str] = []
        parts: tuple[Field[Any], ...] = fields(self) if is_dataclass(self) else ()
        for part in parts:
            value = getattr(self, part.name)
            if part.default is MISSING or value != part.default:
                shown.append(repr(value) if part.default is MISSING else f"{part.name}={value!r}")
        return f"{type(self).__name__}({', '.join(shown)})"


def by_keyword(cls: type[T]) -> type[T]:
    """Has a dataclass say which keyword is missing. Python's own error counts arguments, `self` among them."""
    plain: Any = cls.__init__
    parts = [part for part in fields(cls) if part.init]  # type: ignore[arg-type]
    most = sum(not part.kw_only for part in parts)

    @functools.wraps(plain)
    def begin(self: T, *given: Any, **named: Any) -> None:
        if len(given) <= most:
            plain(self, *given, **named)
            return
        names, odd = [part.name for part in parts if part.kw_only], given[most]
        hint = f"name it: {', '.join(names)}" if names else "leave it out"
        for name in reversed(names):
            with contextlib.suppress(TypeError, ValueError):
                hint = f"for example {cls(*given[:most], **{name: odd})!r}"
        raise TypeError(f"{cls.__name__} must have a keyword before {odd!r}, got it without; {hint}")

    cls.__init__ = begin  # type: ignore[method-assign,assignment]
    return cls


class MatrixTransform(_Value, ABC):
    """Base of transforms that act on each matrix of the plan, `(m, n)` or a stack `(k, m, n)`, and keep no state.

    On a GPU, a subclass declared with `shares=True` gets matrices of several parameters in one call, as a stack.
    It must treat each as it would alone, and not use the site's name, which is empty then. Not inherited.

    One declared with `captures=True` may run from a CUDA graph: it must read neither values nor the site's step. Not
    inherited.
    """

    shares: ClassVar[bool] = False
    captures: ClassVar[bool] = False
    spreads_nan: ClassVar[bool] = False
    """Whether one non-finite entry makes all of its matrix NaN. Otherwise the caller checks the input."""

    def __init_subclass__(
        cls, shares: bool = False, spreads_nan: bool = False, captures: bool = False, **keywords: Any
    ) -> None:
        super().__init_subclass__(**keywords)
        cls.shares, cls.spreads_nan, cls.captures = shares, spreads_nan, captures

    @abstractmethod
    def __call__(self, G: Tensor, site: Site) -> Tensor: ...

    def check(self, name: str, rows: int, columns: int, dtype: torch.dtype) -> None:
        """Raises if this transform cannot take a matrix of that shape and dtype."""

    def why_eager(self, rows: int, columns: int, dtype: torch.dtype, device: torch.device, site: Site) -> str:
        """Why a CUDA graph cannot capture it for a matrix of that shape; empty if it can."""
        return "" if self.captures else not_declared(self)

    def note(self, rows: int, columns: int) -> str:
        """What `print(plan)` adds for a matrix of that shape."""
        return ""

    @property
    def asks_for_autocast(self) -> bool:
        """Whether its result depends on autocast in the forward pass."""
        return False

    @property
    def ignores_autocast(self) -> bool:
        """Whether it takes a gradient to be as precise as its dtype, though autocast may have computed it in less."""
        return False

    def arithmetic(self, rows: int, columns: int, device: torch.device, site: Site) -> str:
        """What `print(plan)` adds about the precision that a matrix of that shape gets."""
        return ""

    def cutoff_text(self) -> str:
        """The text of `print(plan)` about the cut-off; empty without one."""
        return ""


class ElementwiseTransform(_Value, ABC):
    """Base of filters, which act on the gradient of every parameter, or of those that a `plan` takes.

    A subclass declared with `captures=True` may run from a CUDA graph: it must not read values. Not inherited.
    """

    captures: ClassVar[bool] = False
    plan: Plan | None = None
    remembers: ClassVar[tuple[str, ...] | None] = None
    """The keys of its memory, to recognise the state of other transforms; None skips that check."""

    def __init_subclass__(cls, captures: bool = False, **keywords: Any) -> None:
        super().__init_subclass__(**keywords)
        cls.captures = captures

    def __post_init__(self) -> None:
        if self.plan is not None and not isinstance(self.plan, Plan):
            raise TypeError(f"plan must be a Plan, got {type(self.plan).__name__}; make one with matrices(model)")

    def acts_on(self, parameter: Tensor) -> bool:
        """Whether the filter changes the gradient of this parameter."""
        return self.plan is None or self.plan.takes(parameter)

    @abstractmethod
    def start(self, grad: Tensor, stack: int | None) -> Memory:
        """The memory before the first step, for a gradient like this one; counts have one entry per stack element."""

    @abstractmethod
    def __call__(self, grad: Tensor, memory: Memory) -> tuple[Tensor, Memory]:
        """The new gradient and the new memory; neither argument is changed."""


Transform = MatrixTransform | ElementwiseTransform


def not_declared(transform: Transform) -> str:
    return f"{type(transform).__name__} is not declared with captures=True"


def as_chain(transform: Transform | Sequence[Transform]) -> tuple[Transform, ...]:
    """One transform or a sequence of them, checked, as a tuple."""
    one = isinstance(transform, str) or not isinstance(transform, Sequence)
    chain: tuple[Any, ...] = (transform,) if one else tuple(transform)  # type: ignore[arg-type]
    if not chain:
        raise ValueError("transform must be at least one transform, got an empty sequence; use Identity()")
    for link in chain:
        if not isinstance(link, Transform):
            hint = f"call it: {link.__name__}(...)" if isinstance(link, type) else "for example Polar()"
            if isinstance(link, str) and link in get_args(TierChoice):
                hint = f"use Polar(precision={link!r})"
            raise TypeError(f"transform must be a transform or a sequence of them, got {link!r}; {hint}")
    return chain


def uses_matrices(chain: Sequence[Transform]) -> bool:
    """Whether a transform of the chain acts on matrices."""
    return any(isinstance(link, MatrixTransform) for link in chain)


def asks_for_autocast(chain: Sequence[Transform]) -> bool:
    """Whether a transform's result depends on autocast in the forward pass."""
    return any(isinstance(link, MatrixTransform) and link.asks_for_autocast for link in chain)


def ignoring_autocast(chain: Sequence[Transform]) -> list[MatrixTransform]:
    """The transforms that autocast to half precision makes wrong unless they are told of it."""
    return [link for link in chain if isinstance(link, MatrixTransform) and link.ignores_autocast]


def broadcast(values: Tensor, tensor: Tensor) -> Tensor:
    """A scalar, or one value per stack element, shaped to broadcast against the tensor."""
    return values.reshape(values.shape + (1,) * (tensor.ndim - values.ndim))


def is_of_chain(saved: Any, chain: Sequence[Transform]) -> bool:
    """Whether the text of a saved state describes this chain, in present or old spellings."""
    shown = repr(chain)
    return bool(saved == shown) or (isinstance(saved, str) and _OLD.sub(lambda match: RENAMED[match[0]], saved) == shown)


def renamed(name: str) -> str | None:
    """The present name of a transform that was called `name`; None if there was none."""
    new = RENAMED.get(f"{name}(")
    return None if new is None else new.removesuffix("(")
