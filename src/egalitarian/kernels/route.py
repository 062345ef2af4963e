"""Which algorithm computes a polar factor, in which arithmetic, and why.

`decide` is the rule, from shape, dtype, device, cut-off and precision; `choose` applies it to a tensor. `polar` follows the
`Route` that comes out, and `explain` prints it. `choose_lowrank` is the rule for `polar_lowrank`. No other file chooses.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from egalitarian.checks import check_number
from egalitarian.kernels.coefficients import LOST, Steps, basis_steps, root_steps
from egalitarian.kernels.fused import is_available

Precision = torch.dtype | Literal["tf32"]
"""In which a gradient was computed: the argument `compute` of transforms. It sets the default cut-off."""
Algorithm = Literal["svd", "eigh", "polynomial", "rational"]
Method = Literal["auto", "svd", "eigh", "polynomial", "rational"]
Tier = Literal["exact", "fast", "coarse"]
"""How accurate a polar factor is."""
TierChoice = Literal["auto", "exact", "fast", "coarse"]
"""The argument `precision` of `polar`: a tier, or the rule of `tier_for`."""
Root = Literal["quintics", "cholesky", "fused"]

RENAMED = {"products": "polynomial", "inverses": "rational"}
"""Old names of methods."""

RTOL: dict[Precision, float] = {
    torch.float64: 1e-12,
    torch.float32: 1e-6,
    "tf32": 1e-3,
    torch.float16: 1e-3,
    torch.bfloat16: 5e-3,
}
"""The default cut-off, by the precision in which a gradient was *computed*: rounding noise lies below it. Relative to the
largest singular value. `benchmarks/noise.py` measures the noise."""

GRAM_RTOL = 5e-7
"""A float64 Gram matrix resolves singular values down to about 1e-7 of the largest; this leaves a margin of five."""
FAST_RTOL = 3e-4
"""The cut-off of eigenvectors in float32: weaker directions are lost in rounding."""
FAST_CUT = 5e-4
"""The largest cut-off that fast polynomial and rational routes may ignore: they leave directions below it weak anyway."""
SHARP_CUT = 1e-2
"""A larger cut-off selects directions, so it must be exact. That of a polynomial is blurred by a factor of three."""
BLOCKED_FROM = 128
"""From this short side on, a CPU computes matrices one by one, which keeps the working set in cache."""
RATIONAL_FROM = 64
"""From this short side on, the rational route is clearly faster on a CPU than eigenvectors."""
HALVES_FROM = 8
"""From this short side on, fast products in half precision keep 1e-3: of fewer, rounding errors do not average out."""
CHOLESKY_FROM = 1536
"""From this short side on, a Cholesky factor costs less than the products that it saves."""
COARSE_FROM = 257
"""From this short side on, `"auto"` is coarse on a GPU."""
HALVES = (torch.float16, torch.bfloat16)
FULL_RATE = ((8, 0), (9, 0), (10, 0))
"""Compute capabilities of GPUs that are as fast in float64 as in float32."""
SLOW_GPU_POLYNOMIAL = 512
"""On other GPUs, the largest short side for a float64 polynomial. Not measured: we have no such GPU."""


@dataclass(frozen=True)
class Route:
    """How a polar factor is computed, and why."""

    algorithm: Algorithm
    tier: Tier
    """The accuracy of the arithmetic. It is exact where a fast one would not be faster."""
    dtype: torch.dtype
    """Of the Gram matrix, or of the SVD."""
    rtol: float
    """Directions of at most this share of the largest singular value become zero."""
    why: str
    short: int = 1
    """The short side of the matrix, with padding."""
    floor: float | None = None
    readable: bool = False
    """Whether values may decide the next operation: on a CPU, outside vmap and tracing."""
    scaled: torch.dtype | None = torch.float64
    """The dtype in which the kernel squares matrices, which are scaled to its range; None if the kernel takes any."""
    padded: bool = False
    """Half precision: whether zeros pad both sides to a multiple of 8."""
    one_by_one: bool = False
    """Whether the matrices of a batch are computed one after another."""
    blocked: bool = False
    """Eigenvectors: whether the Gram matrix of a single matrix is computed in blocks."""
    root: Root = "quintics"
    """Polynomial: how the inverse root of the Gram matrix is computed."""
    fallback: Route | None = None
    """Fast rational: the route for a matrix that it refuses: a zero or non-finite one, or one with more than a thousand
    equally strong directions next to weak ones."""

    def __str__(self) -> str:
        gram = f"Gram matrix {self.short} x {self.short}"
        dtype = str(self.dtype).removeprefix("torch.")
        roots = {"quintics": "quintics", "cholesky": "Cholesky steps", "fused": "quintics in one Triton kernel"}
        eigenvectors = f"{gram} in {dtype} and its eigenvectors"
        texts = {
            "svd": f"{dtype} SVD, cut-off {self.rtol:g}",
            "eigh": f"{eigenvectors}{', weak ones separately' * (self.dtype == torch.float32)}, cut-off {self.rtol:g}",
            "polynomial": f"{gram} in {dtype}, {roots[self.root]}, cut-off {self.rtol:g} within a factor of three",
            "rational": f"{gram} in {dtype}, two inverses; no cut-off; eigenvectors if it refuses a matrix",
        }
        loose = {
            ("polynomial", "fast"): "quintics in float16, the first with two words; no cut-off",
            ("polynomial", "coarse"): "quintics in float16, coarse; no cut-off",
            ("rational", "coarse"): f"{gram} in {dtype}, one inverse, coarse; no cut-off",
        }
        text = loose.get((self.algorithm, self.tier), texts[self.algorithm])
        return f"{self.algorithm}: {text} ({self.why})"


def choose(
    G: Tensor,
    *,
    method: Method = "auto",
    precision: TierChoice = "exact",
    rtol: float | None = None,
    floor: float | None = None,
) -> Route:
    """The route for this tensor. The arguments are those of `polar`."""
    check_matrix(G)
    if precision == "auto":
        free = rtol is None and floor is None and method in ("auto", "polynomial")
        precision = tier_for(G.dtype, G.device, min(G.shape[-2:])) if free else "exact"
    if is_traced(G):
        return decide(G.shape, G.dtype, G.device, method, precision, rtol, floor, traced=True)
    readable = G.device.type == "cpu"
    float32 = readable and precision != "exact" and float32_is_full()
    if G.device.type == "cuda" and torch.cuda.is_current_stream_capturing():  # a Triton kernel cannot be tried now
        return decide(G.shape, G.dtype, G.device, method, precision, rtol, floor, readable, float32)
    return _cached(G.shape, G.dtype, G.device, method, precision, rtol, floor, readable, float32)


def decide(
    shape: tuple[int, ...],
    dtype: torch.dtype,
    device: torch.device | None,
    method: Method,
    precision: Tier,
    rtol: float | None = None,
    floor: float | None = None,
    readable: bool = False,
    float32: bool = False,
    traced: bool = False,
) -> Route:
    """The rule of docs/tiers.md. `float32`: whether float32 products on this CPU may be used, and have full precision.

    Raises:
        ValueError: the options exclude each other, or one is out of range.
    """
    if precision == "coarse" and rtol is not None:
        raise ValueError(
            f"rtol must be None for precision 'coarse', got {rtol}; use 'auto' or 'exact', which have a cut-off"
        )
    rtol = cut_off(dtype, rtol)
    if floor is not None:
        check_number("floor", floor, "leave it out for the scale-free polar factor")
    check_options(method, precision, rtol, floor)
    short = min(shape[-2:])
    if precision == "coarse":
        return _coarse(method, dtype, device, short, rtol, readable, float32 and all(shape))
    algorithm, why = _algorithm(method, precision, dtype, device, short, rtol, floor)
    if algorithm == "rational":
        eigenvectors = _by_eigenvectors(shape, precision, rtol, None, why, readable, float32)
        if float32 and all(shape):
            single = Route("rational", "fast", torch.float32, rtol, why, short, readable=True)
            return replace(single, scaled=None, one_by_one=True, fallback=eigenvectors)
        reason = "the rational route needs full float32 products and values that can be read"
        return _by_eigenvectors(shape, precision, rtol, None, f"{why}; {reason}", readable, float32)
    if algorithm == "eigh":
        return _by_eigenvectors(shape, precision, rtol, floor, why, readable, float32)
    if algorithm == "svd":
        return Route("svd", "exact", torch.float64, rtol, why, short, floor, readable)
    if algorithm == "polynomial":
        cuda = device is not None and device.type == "cuda"
        padded = short + -short % 8 if cuda else short
        rtol = rtol if precision == "exact" else max(rtol, GRAM_RTOL)  # float64 has one that a Gram matrix cannot resolve
        root = root_for(padded, device, None if traced else root_steps(padded, rtol))
        if precision == "fast" and rtol <= FAST_CUT and root != "fused" and short >= HALVES_FROM:
            return Route("polynomial", "fast", torch.float16, rtol, why, padded, scaled=None, padded=cuda)
        scaled = torch.float64 if dtype == torch.float64 or not all(shape) else None  # one NaN spreads over its matrix
        return Route(
            "polynomial", "exact", torch.float64, rtol, why, padded, scaled=scaled, one_by_one=root == "cholesky", root=root
        )
    raise AssertionError(f"no route for {algorithm!r}")


def tier_for(compute: Precision, device: torch.device, short: int) -> Tier:
    """What `precision="auto"` means for a gradient that was computed in this precision, by its device and short side."""
    if compute in HALVES or (device.type == "cuda" and short >= COARSE_FROM and compute != torch.float64):
        return "coarse"
    return "exact"


def _coarse(
    method: Method, dtype: torch.dtype, device: torch.device | None, short: int, rtol: float, readable: bool, float32: bool
) -> Route:
    """On a CPU one inverse in float32 is faster than products in float16; it needs full float32 products."""
    cuda = device is not None and device.type == "cuda"
    why = "as requested" if method != "auto" else "on a GPU" if cuda else "on a CPU"
    if method == "rational" or (method == "auto" and float32 and not cuda):
        if not float32:
            raise ValueError(
                "method 'rational' must run on a CPU with full float32 products and outside vmap, got other circumstances; "
                "use method='auto'"
            )
        return Route("rational", "coarse", torch.float32, rtol, why, short, readable=readable, scaled=None)
    padded = short + -short % 8 if cuda else short
    return Route("polynomial", "coarse", torch.float16, rtol, why, padded, scaled=None, padded=cuda)


_cached = lru_cache(maxsize=1024, typed=True)(decide)


def root_for(short: int, device: torch.device | None, steps: Steps | None, *, batch: bool = False) -> Root:
    """How an inverse root of this size is computed; the Triton kernel needs its `steps`.

    A batched Cholesky is avoided: it has aborted inside MAGMA.
    """
    if steps is not None and device is not None and is_available(short, device, steps):
        return "fused"
    return "cholesky" if short >= CHOLESKY_FROM and not batch else "quintics"


def choose_lowrank(G: Tensor, width: int, rtol: float) -> Root | None:
    """How `polar_lowrank` computes inverse roots by polynomials; None for its algorithm by QR and SVD."""
    traced = is_traced(G)
    if decide((width, width), G.dtype, G.device, "auto", "exact", rtol, traced=True).algorithm != "polynomial":
        return None
    steps = root_steps(width, rtol), root_steps(width, LOST), basis_steps(width)
    roots = [root_for(width, G.device, None if traced else each, batch=G.ndim > 2) for each in steps]
    return roots[0] if len(set(roots)) == 1 else root_for(width, G.device, None, batch=G.ndim > 2)


def _by_eigenvectors(
    shape: tuple[int, ...], precision: Tier, rtol: float, floor: float | None, why: str, readable: bool, float32: bool
) -> Route:
    """Small matrices always take the exact tier: nothing is faster there."""
    short = min(shape[-2:])
    tier: Tier = "exact" if short < BLOCKED_FROM and rtol >= GRAM_RTOL else precision
    large = readable and short >= BLOCKED_FROM
    blocked = large and (floor is None or len(shape) == 2)
    narrow = tier == "fast" and large and float32
    cut = rtol if tier == "exact" else max(rtol, FAST_RTOL)
    dtype = torch.float32 if narrow else torch.float64
    scaled = torch.float32 if tier == "fast" else torch.float64
    return Route("eigh", tier, dtype, cut, why, short, floor, readable, scaled, large and floor is None, blocked)


def check_options(method: Method, precision: Tier, rtol: float, floor: float | None) -> None:
    """Raises ValueError for options that are unknown or exclude each other."""
    if method not in get_args(Method):
        hint = f"it is now called {RENAMED[method]!r}" if method in RENAMED else "'auto' chooses for you"
        raise ValueError(f"method must be one of {get_args(Method)}, got {method!r}; {hint}")
    if precision not in get_args(Tier):
        raise ValueError(
            f"precision must be one of {get_args(TierChoice)}, got {precision!r}; 'exact' is the most accurate"
        )
    if method in ("eigh", "polynomial") and precision == "exact" and rtol < GRAM_RTOL:
        raise ValueError(f"rtol must be >= {GRAM_RTOL:g} for method {method!r}, got {rtol:g}; raise it or use method='svd'")
    if floor is not None and (method == "polynomial" or precision != "exact"):
        where = f"precision {precision!r}" if precision != "exact" else f"method {method!r}"
        raise ValueError(
            f"floor must be None for {where}, got {floor:g}; use precision='exact' with method='eigh' or 'svd'"
        )
    if (method == "svd" and precision != "exact") or (method == "eigh" and precision == "coarse"):
        raise ValueError(f"precision must be 'exact' for method {method!r}, got {precision!r}; use method='auto'")
    if method == "rational" and precision == "exact":
        raise ValueError("precision must be 'fast' for method 'rational', got 'exact'; use method='eigh' or 'polynomial'")
    if method == "rational" and precision == "fast" and rtol > FAST_CUT:
        raise ValueError(f"rtol must be <= {FAST_CUT:g} for method 'rational', got {rtol:g}; use method='auto' or 'eigh'")


def _algorithm(
    method: Method,
    precision: Tier,
    dtype: torch.dtype,
    device: torch.device | None,
    short: int,
    rtol: float,
    floor: float | None,
) -> tuple[Algorithm, str]:
    """The rule behind `method="auto"`, and its reason. A method that is given by name is taken."""
    if method != "auto":
        return method, "as requested"
    if precision == "exact" and (dtype == torch.float64 or rtol < GRAM_RTOL):
        return "svd", f"a Gram matrix does not resolve a cut-off below {GRAM_RTOL:g}"
    kind = "cpu" if device is None else device.type
    where = "on a CPU" if kind == "cpu" else f"on device {kind}"
    if device is not None and kind == "cpu" and precision == "fast" and rtol <= FAST_CUT and short >= RATIONAL_FROM:
        return "rational", where
    if floor is not None:
        return "eigh", "a floor needs the singular values"
    if rtol > SHARP_CUT:
        return "eigh", f"a cut-off above {SHARP_CUT:g} must be sharp"
    if device is None or kind != "cuda":
        return "eigh", where
    if full_rate(device):
        return "polynomial", "on a GPU with fast float64"
    if precision == "fast" and rtol <= FAST_CUT:
        return "polynomial", "on a GPU"
    slow = "on a GPU with slow float64, short side"
    if short <= SLOW_GPU_POLYNOMIAL:
        return "polynomial", f"{slow} at most {SLOW_GPU_POLYNOMIAL}"
    return "eigh", f"{slow} above {SLOW_GPU_POLYNOMIAL}"


def cut_off(dtype: torch.dtype, rtol: float | None) -> float:
    """The relative cut-off: as given, or the default of the dtype."""
    if rtol is None:
        return RTOL[dtype]
    check_number("rtol", rtol, "the default follows the dtype", below=1.0)
    return rtol


def check_matrix(G: Tensor) -> None:
    """Raises unless G is a dense floating-point matrix or a batch of them."""
    if not isinstance(G, Tensor):
        raise TypeError(f"G must be a tensor, got {type(G).__name__}; convert it with torch.as_tensor")
    if G.layout != torch.strided:
        raise TypeError(f"G must be dense, got layout {G.layout}; call .to_dense()")
    if G.dtype not in RTOL:
        raise TypeError(f"G must be float64, float32, float16 or bfloat16, got {G.dtype}; convert it first")
    if G.ndim < 2:
        raise ValueError(f"G must have at least two dimensions (m, n), got shape {tuple(G.shape)}; reshape it")
    if G.device.type == "mps":
        raise NotImplementedError("G must be on a device with float64, got 'mps'; move it to the CPU")


def is_traced(G: Tensor) -> bool:
    """Whether torch traces, compiles or vmaps, or G is on the meta device or fake, so that no value of G can be read."""
    return (
        torch.compiler.is_compiling()
        or G.is_meta
        or hasattr(G, "fake_mode")
        or torch._C._get_dispatch_mode(torch._C._TorchDispatchModeKey.PROXY) is not None  # make_fx
        or torch._C._functorch.is_batchedtensor(G)
        or torch._C._get_tracing_state() is not None
    )


def float32_is_full() -> bool:
    """Whether a CPU computes float32 products in float32: `torch.set_float32_matmul_precision` may allow less."""
    mkldnn: Any = torch.backends.mkldnn
    for owner in (mkldnn.matmul, mkldnn, torch.backends):
        allowed = getattr(owner, "fp32_precision", "none")
        if allowed != "none":
            return allowed == "ieee" or _is_full_under(allowed)
    return True


@lru_cache
def _is_full_under(allowed: str) -> bool:
    """Measured once: a CPU may have a lower precision allowed and not use it. Most do not."""
    A = torch.randn(192, 512, generator=torch.Generator("cpu").manual_seed(0), dtype=torch.float64, device="cpu")
    exact, narrow = A @ A.mT, A.float() @ A.float().mT
    return bool(torch.linalg.matrix_norm(narrow - exact) < 3e-7 * torch.linalg.matrix_norm(exact))


@lru_cache
def full_rate(device: torch.device) -> bool:
    """Whether the GPU is as fast in float64 as in float32."""
    return torch.cuda.get_device_capability(device) in FULL_RATE
