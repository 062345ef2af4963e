"""Transforms of matrices: EGD exact and randomized, row norm, natural gradient."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

from egalitarian.checks import check_bool, check_integer, check_number, check_share
from egalitarian.kernels import (
    RTOL,
    Method,
    Precision,
    Tier,
    TierChoice,
    check_options,
    choose_lowrank,
    decide,
    natural,
    normalize,
    polar,
    polar_lowrank,
    tier_for,
)
from egalitarian.transforms.base import MatrixTransform, Site, by_keyword
from egalitarian.transforms.sketches import SketchKey, sketch_for


@dataclass(frozen=True, repr=False)
class _CutOff(MatrixTransform):
    """A matrix transform with a relative cut-off, which follows the precision in which the gradient was computed."""

    compute: Precision | None = field(default=None, kw_only=True)
    rtol: float | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        if self.compute is not None and not (isinstance(self.compute, torch.dtype | str) and self.compute in RTOL):
            known = ", ".join(str(precision) for precision in RTOL)
            raise ValueError(f"compute must be one of {known}, got {self.compute!r}; None follows the gradient")
        if self.rtol is not None:
            check_number("rtol", self.rtol, "None follows the precision", below=1.0)

    def cut(self, site: Site) -> float:
        return self.rtol if self.rtol is not None else RTOL[self.compute or site.compute]

    @property
    def ignores_autocast(self) -> bool:
        return self.compute is None and self.rtol is None and not self.asks_for_autocast

    def cutoff_text(self) -> str:
        if self.rtol is not None:
            return f"cut-off {self.rtol:g}, as given"
        if self.compute is not None:
            return f"cut-off {RTOL[self.compute]:g}, gradients computed in {str(self.compute).removeprefix('torch.')}"
        half = f"{RTOL[torch.float16]:g} under a GradScaler"
        return f"cut-off by the gradient's dtype ({RTOL[torch.float32]:g} for float32), {half}"


@by_keyword
@dataclass(frozen=True, repr=False)
class Polar(_CutOff, shares=True, spreads_nan=True, captures=True):
    """EGD: replaces each gradient matrix G = U S Vᵀ by its polar factor U Vᵀ.

    Args:
        compute: the precision in which the gradients are *computed*, which sets the cut-off: see
            `docs/tiers.md#half-precision-and-the-cut-off`. None means the gradient's dtype, or float16 while a GradScaler
            is stepping. Under bf16 autocast pass `torch.bfloat16` to exact and fast: the gradients are float32, but
            their noise is that of bfloat16.
        rtol: the relative cut-off itself, in [0, 1); overrides `compute`.
        floor, method: as for `egalitarian.polar`.
        precision: `"exact"`, `"fast"`, `"coarse"` or `"auto"`: see `egalitarian.polar`. `"auto"` is also coarse while a
            GradScaler is stepping, for a half-precision `compute`, and if `attach` sees autocast to half precision.
        scale: a factor for each matrix (m, n), as `adjust_lr_fn` of `torch.optim.Muon`. None means 1.
            - `"spectral"`: sqrt(max(1, m / n)), Muon's `"original"`.
            - `"rms"`: 0.2 sqrt(max(m, n)), Muon's `"match_rms_adamw"`.

    >>> from egalitarian import attach
    >>> layer = torch.nn.Linear(3, 2)
    >>> egd = attach(torch.optim.AdamW(layer.parameters()), layer, Polar(compute=torch.bfloat16))
    >>> egd.plan.header
    'Polar(compute=torch.bfloat16); cut-off 0.005, gradients computed in bfloat16'
    """

    floor: float | None = field(default=None, kw_only=True)
    method: Method = field(default="auto", kw_only=True)
    precision: TierChoice = field(default="exact", kw_only=True)
    scale: Literal["spectral", "rms"] | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.scale not in (None, "spectral", "rms"):
            raise ValueError(f"scale must be None, 'spectral' or 'rms', got {self.scale!r}; None keeps U Vᵀ as it is")
        if self.floor is not None:
            check_number("floor", self.floor, "None is scale-free")
        given = self.rtol is not None or self.compute is not None
        rtol = self.cut(Site("", 0, torch.float32)) if given else RTOL[torch.float32]
        if self.precision == "coarse" and self.rtol is not None:
            raise ValueError(f"rtol must be None for precision 'coarse', got {self.rtol}; use 'auto' or 'exact'")
        check_options(self.method, self._if_exact, rtol, self.floor)

    @property
    def _if_exact(self) -> Tier:
        return "exact" if self.precision == "auto" else self.precision

    @property
    def asks_for_autocast(self) -> bool:
        return self.precision == "auto" and self.compute is None and self.rtol is None and self.floor is None

    @property
    def ignores_autocast(self) -> bool:
        return super().ignores_autocast and self.precision != "coarse"

    def tier(self, rows: int, columns: int, device: torch.device, site: Site) -> Tier:
        """The precision that a matrix of that shape gets."""
        if self.precision != "auto" or self.rtol is not None or self.floor is not None or self.method in ("svd", "eigh"):
            return self._if_exact
        half = torch.bfloat16 if site.half else site.compute
        return tier_for(self.compute or half, device, min(rows, columns))

    def __call__(self, G: Tensor, site: Site) -> Tensor:
        rows, columns = G.shape[-2:]
        tier = self.tier(rows, columns, G.device, site)
        rtol = None if tier == "coarse" else self.cut(site)
        P = polar(G, method=self.method, precision=tier, rtol=rtol, floor=self.floor)
        return P if self.scale is None else P * self.factor(rows, columns)

    def check(self, name: str, rows: int, columns: int, dtype: torch.dtype) -> None:
        try:
            check_options(self.method, self._if_exact, self.cut(Site(name, 0, dtype)), self.floor)
        except ValueError as error:
            raise ValueError(f"{name!r} of {dtype}: {error}") from None

    def why_eager(self, rows: int, columns: int, dtype: torch.dtype, device: torch.device, site: Site) -> str:
        tier = self.tier(rows, columns, device, site)
        rtol = None if tier == "coarse" else self.cut(site)
        algorithm = decide((rows, columns), dtype, device, self.method, tier, rtol, self.floor).algorithm
        return "" if algorithm == "polynomial" else f"{algorithm} synchronises"

    def arithmetic(self, rows: int, columns: int, device: torch.device, site: Site) -> str:
        return self.tier(rows, columns, device, site)

    def cutoff_text(self) -> str:
        if self.precision == "coarse":
            return "coarse: no cut-off, directions below 1/40 of the norm may come out weaker"
        weak = ", fast: directions below 1e-3 of the largest may come out weaker"
        return super().cutoff_text() + (weak if self.precision == "fast" else "")

    def factor(self, rows: int, columns: int) -> float:
        if self.scale == "spectral":
            return math.sqrt(max(1.0, rows / max(columns, 1)))
        if self.scale == "rms":
            return 0.2 * math.sqrt(max(rows, columns))
        return 1.0

    def note(self, rows: int, columns: int) -> str:
        return "" if self.scale is None else f"scaled by {self.factor(rows, columns):.3g}"


@by_keyword
@dataclass(frozen=True, repr=False)
class LowRankPolar(_CutOff, captures=True):
    """EGD on the `rank` leading directions only, by a randomized SVD (the paper's Algorithms 2 and 3).

    The sketch, a random matrix, depends on (seed, parameter name, step). torch's global generator is neither read nor
    changed. Every element of a stack gets the sketch that it would get alone.

    Args:
        rank: number of directions to keep. A matrix with fewer rows or columns is an error, unless `cap=True`.
        cap: use min(rank, m, n) for such a matrix instead; `print(plan)` shows it.
        iterations, oversample: as for `egalitarian.polar_lowrank`.
        seed: seed of all sketches.
        fixed: use the same sketch at every step, as in the authors' JAX code.
        share: adaptive rank, in (0, 1]. At each step, each matrix keeps the smallest rank, at most `rank`, that holds
            this share of its squared singular values. This saves no time. None keeps `rank` directions.
        compute, rtol: as for `Polar`.

    >>> from egalitarian import attach
    >>> layer = torch.nn.Linear(8, 4)
    >>> egd = attach(torch.optim.SGD(layer.parameters(), lr=0.1), layer, LowRankPolar(64, cap=True))
    >>> egd.plan.taken[0].verdict
    'taken as 4 x 8, rank 4, capped from 64'
    """

    rank: int
    cap: bool = False
    iterations: int = field(default=2, kw_only=True)
    oversample: int = field(default=0, kw_only=True)
    seed: int = field(default=0, kw_only=True)
    fixed: bool = field(default=False, kw_only=True)
    share: float | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_integer("rank", self.rank, "use Polar() for every direction", least=1)
        check_integer("iterations", self.iterations, "the paper uses 2", least=1)
        check_integer("oversample", self.oversample, "the paper uses 0", least=0)
        check_integer("seed", self.seed, "it seeds every sketch")
        check_bool("cap", self.cap)
        check_bool("fixed", self.fixed)
        if self.share is not None:
            check_share(self.share)

    def __call__(self, G: Tensor, site: Site) -> Tensor:
        rows, columns = G.shape[-2:]
        rank = max(min(self.rank, rows, columns) if self.cap else self.rank, 1)
        width = min(rank + self.oversample, rows, columns)
        sketch = sketch_for(SketchKey(self.seed, site.name, self.fixed, columns, width), site.step, G.device)
        options = {"iterations": self.iterations, "oversample": self.oversample}
        return polar_lowrank(G, rank, **options, rtol=self.cut(site), share=self.share, sketch=sketch)

    def check(self, name: str, rows: int, columns: int, dtype: torch.dtype) -> None:
        if not self.cap and self.rank > min(rows, columns):
            raise ValueError(
                f"rank must be in [1, {min(rows, columns)}] for {name!r} of shape {(rows, columns)}, got {self.rank}; "
                f"lower it, pass cap=True or use Polar()"
            )

    def why_eager(self, rows: int, columns: int, dtype: torch.dtype, device: torch.device, site: Site) -> str:
        if self.oversample or (self.share or 1) < 1:
            return "an oversampled or adaptive rank takes an SVD, which synchronises"
        width = min(self.rank, rows, columns)
        G = torch.empty(0, rows, columns, dtype=dtype, device=device)
        return "" if choose_lowrank(G, width, self.cut(site)) else "its QR and SVD synchronise"

    def note(self, rows: int, columns: int) -> str:
        rank = min(self.rank, rows, columns)
        capped = f", capped from {self.rank}" if rank < self.rank else ""
        return f"rank {rank}{capped}" + (
            "" if self.share is None else f", or fewer that hold {self.share:g} of the spectrum"
        )


@by_keyword
@dataclass(frozen=True, repr=False)
class RowNorm(MatrixTransform, shares=True, captures=True):
    """Row norm, the paper's cheap alternative to EGD: divides every row g by max(|g|, floor).

    A row belongs to one output unit. The paper calls this "column norm", since it stores weights as (in, out).

    Args:
        floor: as for `normalize`.

    >>> from egalitarian import attach
    >>> layer = torch.nn.Linear(2, 2, bias=False)
    >>> layer.weight.grad = torch.tensor([[3.0, 4.0], [0.0, 2.0]])
    >>> optimizer = torch.optim.SGD(layer.parameters(), lr=1.0)
    >>> egd = attach(optimizer, layer, RowNorm())
    >>> optimizer.step()
    >>> layer.weight.grad
    tensor([[0.6000, 0.8000],
            [0.0000, 1.0000]])
    """

    floor: float = 0.01

    def __post_init__(self) -> None:
        check_number("floor", self.floor, "the paper uses 0.01", above=0.0)

    def __call__(self, G: Tensor, site: Site) -> Tensor:
        return normalize(G, floor=self.floor)


@by_keyword
@dataclass(frozen=True, repr=False)
class Natural(_CutOff, shares=True):
    """The natural gradient F⁻¹ G with the layer's empirical Fisher matrix F = G Gᵀ, for comparison.

    It inverts the singular values instead of equalising them, so the weakest direction moves fastest. It is unstable.

    Args:
        compute, rtol: as for `Polar`.

    >>> from egalitarian import attach
    >>> layer = torch.nn.Linear(2, 2, bias=False)
    >>> layer.weight.grad = torch.tensor([[2.0, 0.0], [0.0, 0.5]])
    >>> optimizer = torch.optim.SGD(layer.parameters(), lr=1.0)
    >>> egd = attach(optimizer, layer, Natural())
    >>> optimizer.step()
    >>> layer.weight.grad
    tensor([[0.5000, 0.0000],
            [0.0000, 2.0000]])
    """

    def why_eager(self, rows: int, columns: int, dtype: torch.dtype, device: torch.device, site: Site) -> str:
        return "the natural gradient takes an SVD, which synchronises"

    def __call__(self, G: Tensor, site: Site) -> Tensor:
        return natural(G, rtol=self.cut(site))
