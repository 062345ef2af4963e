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


@triton.jit
def product_kernel(
    A,
    A_low,
    B,
    B_low,
    C,
    C_low,
    D,
    D_low,
    scales,
    alpha,
    beta,
    shift,
    m,
    n,
    inner,
    a_batch,
    a_row,
    a_column,
    b_batch,
    b_row,
    b_column,
    WORDS: tl.constexpr,
    SYMMETRIC: tl.constexpr,
    PLUS: tl.constexpr,
    SCALED: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    INNER: tl.constexpr,
):
    """One tile of D = scale (alpha A B + beta C + shift) for one matrix of the batch; C and D are contiguous (b, m, n).

    A symmetric D is computed on and below the diagonal, and stored twice.
    """
    tile = tl.program_id(0)
    batch = tl.program_id(1).to(tl.int64)
    across = tl.cdiv(n, COLUMNS)
    row, column = tile // across, tile % across
    if SYMMETRIC:  # noqa: SIM102  # known when the kernel is compiled
        if column > row:
            return
    i = row * ROWS + tl.arange(0, ROWS)
    j = column * COLUMNS + tl.arange(0, COLUMNS)
    k = tl.arange(0, INNER)
    a_offset = batch * a_batch + i[:, None] * a_row + k[None, :] * a_column
    b_offset = batch * b_batch + k[:, None] * b_row + j[None, :] * b_column
    total_ = tl.zeros((ROWS, COLUMNS), dtype=tl.float32)
    for start in range(0, inner, INNER):
        a_inside = (i < m)[:, None] & (start + k < inner)[None, :]
        b_inside = (start + k < inner)[:, None] & (j < n)[None, :]
        a = tl.load(A + a_offset, a_inside, 0.0)
        b = tl.load(B + b_offset, b_inside, 0.0)
        total_ = tl.dot(a, b, total_)
        if WORDS == 2:
            a_low = tl.load(A_low + a_offset, a_inside, 0.0)
            b_low = tl.load(B_low + b_offset, b_inside, 0.0)
            total_ = tl.dot(a, b_low, total_)
            total_ = tl.dot(a_low, b, total_)
        a_offset += INNER * a_column
        b_offset += INNER * b_row
    total_ = total_ * alpha
    offset = batch * m * n + i[:, None] * n + j[None, :]
    inside = (i < m)[:, None] & (j < n)[None, :]
    if PLUS:
        total_ += beta * tl.load(C + offset, inside, 0.0).to(tl.float32)
        if WORDS == 2:
            total_ += beta * tl.load(C_low + offset, inside, 0.0).to(tl.float32)
    total_ = tl.where(i[:, None] == j[None, :], total_ + shift, total_)
    if SCALED:
        total_ = total_ * tl.load(scales + batch)
    high = total_.to(tl.float16)
    tl.store(D + offset, high, inside)
    mirrored = batch * m * n + j[:, None] * n + i[None, :]
    if SYMMETRIC:
        tl.store(D + mirrored, tl.trans(high), tl.trans(inside))
    if WORDS == 2:
        low = (total_ - high.to(tl.float32)).to(tl.float16)
        tl.store(D_low + offset, low, inside)
        if SYMMETRIC:
            tl.store(D_low + mirrored, tl.trans(low), tl.trans(inside))
