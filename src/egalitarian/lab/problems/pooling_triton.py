"""The Triton kernels of `networks.py`, in a file that is imported only where Triton is. Images are channels-last."""

import triton
import triton.language as tl


@triton.jit
def corner(index, rows, columns, channels):
    """The offset in x of an output's 2 x 2 window, and the offset to the next row."""
    channel, column = index % channels, (index // channels) % columns
    row, point = (index // (channels * columns)) % rows, index // (channels * columns * rows)
    below = 2 * columns * channels
    return point * (2 * rows * below) + 2 * row * below + 2 * column * channels + channel, below


@triton.jit
def later(largest, value, number, which):
    """Takes the value if it is larger, or NaN, as torch does."""
    taken = (value > largest) | (value != value)
    return tl.where(taken, number, which), tl.where(taken, value, largest)


@triton.jit
def forward_kernel(x, bias, y, chosen, rows, columns, channels, count, BLOCK: tl.constexpr):
    index = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = index < count
    start, below = corner(index, rows, columns, channels)
    a, b = tl.load(x + start, inside), tl.load(x + start + channels, inside)
    c, d = tl.load(x + start + below, inside), tl.load(x + start + below + channels, inside)
    which = tl.zeros_like(index)
    which, a = later(a, b, 1, which)
    which, a = later(a, c, 2, which)
    which, a = later(a, d, 3, which)
    value = a + tl.load(bias + index % channels, inside)
    off = value <= 0  # a NaN is not
    tl.store(y + index, tl.where(off, 0.0, value), inside)
    tl.store(chosen + index, tl.where(off, -1, which).to(tl.int8), inside)


@triton.jit
def backward_kernel(above, chosen, x, rows, columns, channels, count, BLOCK: tl.constexpr):
    index = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = index < count
    start, below = corner(index, rows, columns, channels)
    value, which = tl.load(above + index, inside), tl.load(chosen + index, inside)
    tl.store(x + start, tl.where(which == 0, value, 0.0), inside)
    tl.store(x + start + channels, tl.where(which == 1, value, 0.0), inside)
    tl.store(x + start + below, tl.where(which == 2, value, 0.0), inside)
    tl.store(x + start + below + channels, tl.where(which == 3, value, 0.0), inside)
