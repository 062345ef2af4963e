"""The randomized polar factor: the leading directions, by power iteration on a Gaussian sketch."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from egalitarian.checks import check_integer, check_share
from egalitarian.kernels.polynomial import lowrank_factor
from egalitarian.kernels.route import Root, check_matrix, choose_lowrank, cut_off, is_traced
from egalitarian.kernels.scaling import contained
from egalitarian.kernels.svd import above_cut, recombine


@torch.no_grad()
def polar_lowrank(
    G: Tensor,
    rank: int,
    *,
    iterations: int = 2,
    oversample: int = 0,
    seed: int = 0,
    rtol: float | None = None,
    share: float | None = None,
    sketch: Tensor | None = None,
) -> Tensor:
    """U S⁻¹ Uᵀ G, with the `rank` leading U and S from a randomized SVD (the paper's Algorithms 2 and 3).

    The `rank` strongest directions are equalised, the others become zero. U and S are estimates, so singular values are 1
    only up to the error of the sketch. At full rank the result equals that of `polar`.

    The sketch is a random matrix that depends on `seed` alone. torch's global generator is neither read nor changed.
    Every matrix of a batch gets the same sketch.

    On CUDA it uses matrix products and does not synchronise, under the same conditions as `polar`. With `oversample` or
    `share` it uses torch's QR and SVD, which synchronise. A CUDA graph can capture it only with a `sketch`, which you
    refill before every replay: a sketch from `seed` is drawn on the CPU.

    Args:
        G: one matrix or a batch `(..., m, n)`.
        rank: number of directions to keep, from 1 to min(m, n).
        iterations: rounds of power iteration, at least 1; the paper uses 2.
        oversample: extra columns of the sketch, dropped after the SVD; the paper uses 0. The sketch never has more than
            min(m, n) columns.
        seed: seed of the Gaussian sketch.
        rtol: as for `polar`.
        share: adaptive rank, in (0, 1]. Each matrix keeps the smallest r <= `rank` with s_1² + ... + s_r² >= share |G|².
            This saves no time, since all `rank` directions are computed. None keeps `rank` directions.
        sketch: a tensor of shape (n, rank + oversample) to use instead of one from `seed`.

    Returns:
        A new tensor with the shape and dtype of G.

    Raises:
        TypeError: G is not a dense floating-point tensor.
        ValueError: an option is out of range, or `sketch` has the wrong shape.
        RuntimeError: called without `sketch` while a CUDA graph is captured.

    >>> polar_lowrank(torch.diag(torch.tensor([3.0, 0.5, 0.01])), rank=3).diagonal().round(decimals=4)
    tensor([1., 1., 1.])
    """
    check_matrix(G)
    _check_options(G, rank, iterations, oversample, seed, share)
    rtol = cut_off(G.dtype, rtol)
    width = min(rank + oversample, *G.shape[-2:])
    share = None if share == 1 else share
    basis = _sketch(G, width, seed, sketch)
    root = None if width > rank or share is not None else choose_lowrank(G, width, rtol)
    if root is None:
        kernel = partial(_by_svd, basis, rank=rank, iterations=iterations, rtol=rtol, share=share)
    else:
        kernel = partial(_by_polynomial, basis, iterations=iterations, rtol=rtol, root=root)
    return contained(G, kernel, readable=G.device.type == "cpu" and not is_traced(G))


def _check_options(G: Tensor, rank: int, iterations: int, oversample: int, seed: int, share: float | None) -> None:
    check_integer("rank", rank, "use polar() for every direction")
    check_integer("iterations", iterations, "the paper uses 2", least=1)
    check_integer("oversample", oversample, "the paper uses 0", least=0)
    check_integer("seed", seed, "it seeds the sketch")
    if share is not None:
        check_share(share)
    rows, columns = G.shape[-2:]
    if not 1 <= rank <= max(1, min(rows, columns)):
        raise ValueError(
            f"rank must be in [1, {min(rows, columns)}] for a matrix of shape {(rows, columns)}, got {rank}; "
            f"lower it or use polar()"
        )


def _sketch(G: Tensor, width: int, seed: int, sketch: Tensor | None) -> Tensor:
    """The sketch as it was given, or from the seed; in float64 on the device of G."""
    shape = (G.shape[-1], width)
    if sketch is None:
        _refuse_capture(G.device)
        sketch = gaussian(*shape, seed, G.device)
    elif not isinstance(sketch, Tensor):
        raise TypeError(f"sketch must be a tensor, got {type(sketch).__name__}; or leave it out")
    elif sketch.shape != shape:
        raise ValueError(f"sketch must be of shape {shape}, got {tuple(sketch.shape)}; or leave it out")
    return sketch.to(G.device, torch.float64)


def _by_polynomial(sketch: Tensor, X: Tensor, scale: Tensor, *, iterations: int, rtol: float, root: Root) -> Tensor:
    return lowrank_factor(X.to(torch.float64), sketch, iterations, rtol, root)


def _by_svd(
    sketch: Tensor, X: Tensor, scale: Tensor, *, rank: int, iterations: int, rtol: float, share: float | None
) -> Tensor:
    X, Q = X.to(torch.float64), sketch
    for _ in range(iterations):
        Q = torch.linalg.qr(X @ Q).Q
        Q = torch.linalg.qr(X.mT @ Q).Q
    U, S, _ = torch.linalg.svd(X @ Q, full_matrices=False)
    U, S = U[..., :rank], S[..., :rank]
    kept = above_cut(S, rtol)
    if share is not None:
        kept = kept & _leading(S, share, X)
    return recombine(U, torch.where(kept, 1 / S, 0), U.mT @ X)


def _leading(S: Tensor, share: float, X: Tensor) -> Tensor:
    """The fewest leading directions that hold `share` of |X|²: those before which the sum is still too small."""
    before = S.square() @ torch.ones(S.shape[-1], S.shape[-1], dtype=S.dtype, device=S.device).triu(1)
    enough: Tensor = share * torch.linalg.matrix_norm(X).square()[..., None]
    return before < enough


def _refuse_capture(device: torch.device) -> None:
    if device.type == "cuda" and torch.cuda.is_current_stream_capturing():
        raise RuntimeError(
            "polar_lowrank must run outside a CUDA graph or be given a sketch, got a stream that is capturing; a graph "
            "would replay the same sketch at every step: use Sketches, polar() or no graph"
        )


def gaussian(rows: int, columns: int, seed: int, device: torch.device) -> Tensor:
    """A random matrix, the same on every device; a copy to a GPU does not synchronise."""
    generator = torch.Generator("cpu").manual_seed(seed)
    sketch = torch.randn(rows, columns, generator=generator, dtype=torch.float64, device="cpu")
    return sketch.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else sketch.to(device)
