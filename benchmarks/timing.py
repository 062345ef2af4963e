"""How long a piece of GPU work takes inside a CUDA graph."""

from __future__ import annotations

import statistics
from collections.abc import Callable

import torch


def graph_ms(run: Callable[[], object], turns: int = 15, inside: int = 5) -> float:
    """Of one call of `run`, median, in a CUDA graph of five."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        run()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(inside):
            run()
    times = []
    for _ in range(turns):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        times.append(begin.elapsed_time(end) / inside)
    return statistics.median(times)
