"""The kernels of `pooling`, apart, since only Triton can read them. Images are (points, height, width, channels)."""

import triton
import triton.language as tl


@triton.jit
def corner(place, rows, columns, channels):
    """Where the window of an output begins in x, and the step to the row below."""
    channel, column = place % channels, (place // channels) % columns
    row, point = (place // (channels * columns)) % rows, place // (channels * columns * rows)
    below = 2 * columns * channels
    return point * (2 * rows * below) + 2 * row * below + 2 * column * channels + channel, below


@triton.jit
def forward_kernel(x, bias, y, chosen, rows, columns, channels, count, BLOCK: tl.constexpr):
    place = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = place < count
    start, below = corner(place, rows, columns, channels)
    a, b = tl.load(x + start, inside), tl.load(x + start + channels, inside)
    c, d = tl.load(x + start + below, inside), tl.load(x + start + below + channels, inside)
    top, bottom = tl.where(b > a, b, a), tl.where(d > c, d, c)
    value = tl.where(bottom > top, bottom, top) + tl.load(bias + place % channels, inside)
    which = tl.where(bottom > top, tl.where(d > c, 3, 2), tl.where(b > a, 1, 0))
    total = a + b + c + d + value
    value = tl.where(total != total, total, tl.where(value > 0, value, 0.0))  # a NaN is passed on
    tl.store(y + place, value, inside)
    tl.store(chosen + place, tl.where(value > 0, which, -1).to(tl.int8), inside)


@triton.jit
def backward_kernel(above, chosen, x, rows, columns, channels, count, BLOCK: tl.constexpr):
    place = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = place < count
    start, below = corner(place, rows, columns, channels)
    value, which = tl.load(above + place, inside), tl.load(chosen + place, inside)
    tl.store(x + start, tl.where(which == 0, value, 0.0), inside)
    tl.store(x + start + channels, tl.where(which == 1, value, 0.0), inside)
    tl.store(x + start + below, tl.where(which == 2, value, 0.0), inside)
    tl.store(x + start + below + channels, tl.where(which == 3, value, 0.0), inside)
