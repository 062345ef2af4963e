"""The Triton kernel of `fused`, in a file of its own: importing it needs Triton."""

import triton
import triton.language as tl


@triton.jit
def times(A, B):
    return tl.dot(A, B, out_dtype=tl.float64)


@triton.jit
def total(A):
    return tl.sum(tl.sum(A, axis=1), axis=0)


@triton.jit
def inverse_root_kernel(K, Z, steps, count, n, cut, SIZE: tl.constexpr, SHARP: tl.constexpr):
    """One block per matrix; see `polynomial._normalized`, `_root_by_quintics`, `_sharpened`."""
    i = tl.arange(0, SIZE)
    inside = (i < n)[:, None] & (i < n)[None, :]
    offset = tl.program_id(0).to(tl.int64) * n * n + i[:, None] * n + i[None, :]
    one = tl.where(i[:, None] == i[None, :], 1.0, 0.0).to(tl.float64)

    R = tl.load(K + offset, inside, 0.0)
    trace = tl.maximum(total(R * one), 1e-150)
    R = R / trace
    square = times(R, R)
    fourth = times(square, square)
    root_t4 = tl.maximum(tl.sqrt(total(square * square)), 1e-60)
    root_t8 = tl.maximum(tl.sqrt(total(fourth * fourth)), 1e-60)
    above = tl.sqrt(tl.sqrt(root_t8))
    e2 = cut * tl.minimum(tl.sqrt(root_t8 / root_t4) / above, 1.0)

    R = R / above + e2 * one
    X = one
    for step in range(count):
        a, b, c = tl.load(steps + 3 * step), tl.load(steps + 3 * step + 1), tl.load(steps + 3 * step + 2)
        h = a * one + b * R + c * times(R, R)
        X = times(X, h)
        R = times(times(R, h), h)
    if SHARP:
        W = one - e2 * times(X, X)
        square = times(W, W)
        cube = times(square, W)
        X = times(X, times(cube, 15.0 * one - 27.5 * W + 16.5 * square - 3.0 * cube))
    tl.store(Z + offset, X / tl.sqrt(trace * above), inside)
