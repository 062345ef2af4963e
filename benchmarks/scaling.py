"""What a step of EGD costs on many GPUs: computed from kernel times that were measured on one, and from counted bytes.

    PYTHONPATH=src python benchmarks/scaling.py [--out FILE]     # seconds, on a CPU; nothing is measured

Times are those of `clocks`. Bytes and owners come from the code of `egalitarian.distributed`. What is neither measured nor
counted is a field of `Assumed`.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from clocks import KERNELS, MODELS, STEP, TIERS, TRAIN, WHOLE, Model, Tier, alone, bare, in_a_step, left_out, matrices_of

from egalitarian.distributed.exchange import Bucket, buckets
from egalitarian.distributed.owners import Member, cost, longest_first
from egalitarian.distributed.spread import Piece, Spread
from egalitarian.select import Entry

GPUS = (1, 8, 64, 256, 1024)


@dataclass(frozen=True)
class Assumed:
    """What is neither measured nor counted."""

    tokens: int = 8192
    """Per GPU and step."""
    peak: float = 989e12
    """Operations of an H200 in a second, in bfloat16, as its maker says."""
    share: float = 0.4
    """Of that peak, in the forward and the backward pass."""
    inside: float = 300e9
    """Bytes that a rank sends in a second, and receives, to the ranks of its node."""
    between: float = 40e9
    """The same to other nodes."""
    node: int = 8
    """GPUs of a node."""
    start: float = 1e-4
    """Seconds before a collective moves its first byte."""
    memory: float = 141e9
    """Bytes of a GPU, for weights, gradients and two averages of AdamW in float32."""


# -- owners and bytes -------------------------------------------------------------------------------------------------


def pieces(shape: Sequence[int], ranks: int, copied: bool) -> tuple[Piece, ...]:
    """What every rank holds: all of it, or a part of the rows as `torch.chunk` divides them."""
    rows, *rest = shape
    zeros = (0,) * len(rest)
    if copied:
        return (Piece((0, *zeros), tuple(shape)),) * ranks
    size = -(-rows // ranks)
    starts = [min(rank * size, rows) for rank in range(ranks)]
    return tuple(Piece((start, *zeros), (min(size, rows - start), *rest)) for start in starts)


def members_of(entries: Sequence[Entry], ranks: int, copied: bool) -> list[Member]:
    """With owners as `egalitarian.distributed` chooses them, without processes."""
    owners = longest_first([(cost(entry), entry.parameter.numel()) for entry in entries], ranks)
    spreads = {
        shape: Spread(None, 0, pieces(shape, ranks, copied), torch.device("cuda"), "", ())
        for shape in {tuple(entry.shape) for entry in entries}
    }
    return [Member(entry, spreads[tuple(entry.shape)], owner) for entry, owner in zip(entries, owners, strict=True)]


Flow = tuple[list[int], list[int]]
"""Elements that each rank sends and receives in a collective."""


def flows(members: Sequence[Member]) -> list[tuple[Flow, Flow]]:
    """For each bucket, to the owners and back."""
    return [(_flow(bucket, back=False), _flow(bucket, back=True)) for bucket in _in_buckets(members)]


def _in_buckets(members: Sequence[Member]) -> list[Bucket]:
    return buckets(members, [torch.empty(0)] * len(members))


def _flow(bucket: Bucket, back: bool) -> Flow:
    ranks = bucket.members[0].spread.ranks
    owned, others = [0] * ranks, [0] * ranks
    for member in bucket.members:
        if member.spread.copied and not back:
            continue
        for rank, piece in enumerate(member.spread.pieces):
            if rank != member.owner:
                owned[member.owner or 0] += piece.numel
                others[rank] += piece.numel
    return (owned, others) if back else (others, owned)


@dataclass(frozen=True)
class Cost:
    """Seconds of one step."""

    computing: float
    """By the busiest owner."""
    together: float
    """Moving, if all buckets moved at once."""
    in_turn: float
    """Moving, if one bucket waited for the other."""
    everywhere: float
    """Where every rank computes all: computing and, of shards, gathering."""


def bandwidth(ranks: int, assumed: Assumed) -> float:
    """Bytes in a second. The part that stays in the node moves at the same time as the part that leaves it."""
    leaving = max(0, ranks - assumed.node) / max(1, ranks - 1)
    return min(assumed.inside / max(1e-9, 1 - leaving), assumed.between / leaving if leaving else math.inf)


def costs(model: Model, ranks: int, copied: bool, tiers: Sequence[Tier], assumed: Assumed) -> dict[str, Cost]:
    """By tier, for a group of so many ranks."""
    members = members_of(model.entries, ranks, copied)
    owned = {rank: matrices_of(each.entry for each in members if each.owner == rank) for rank in {m.owner for m in members}}
    loads = {frozenset(each.items()): each for each in owned.values()}
    speed, together, in_turn = bandwidth(ranks, assumed) / 4, 0.0, 0.0
    found = flows(members) if ranks > 1 else []
    for direction in (0, 1):
        total = [[sum(each) for each in zip(*(flow[direction][way] for flow in found), strict=True)] for way in (0, 1)]
        if any(map(any, total)):
            together += assumed.start + max(map(max, total)) / speed
            in_turn += sum(assumed.start + max(map(max, flow[direction])) / speed for flow in found)
    size = sum(member.entry.parameter.numel() for member in members)
    gathering = 0.0 if copied or ranks == 1 else assumed.start + size * (ranks - 1) / ranks / speed
    everything = matrices_of(model.entries)
    return {
        tier.name: Cost(
            max(tier.seconds(load) for load in loads.values()), together, in_turn, tier.seconds(everything) + gathering
        )
        for tier in tiers
    }


# -- tables -----------------------------------------------------------------------------------------------------------

ABOUT = """\
# What a step of EGD costs on many GPUs, computed

Computed by `benchmarks/scaling.py` from kernel times of one NVIDIA H200 and from counted bytes.
Nothing was run on more than one GPU.

- Times by shape: `{kernels}.json`, in CUDA graphs, float32. Checks: `{step}.json`, `{train}.json`.
- Coarse was not measured by shape: its products, counted, at the rate of Muon's iteration in the same file. Its times are
  then scaled to what coarse adds to a whole step of GPT-124M, {scale:.2f} times as much.
- Fast is the algorithm before 2026-11-18. The present one has more products, and has not been measured by shape.
- Owners, buckets and bytes: the code of `egalitarian.distributed`, without processes. Gradients are in float32.
- Assumed of a step: {tokens} tokens per GPU. Forward and backward pass: 6 x parameters x tokens, at {share:.0%}
  of {peak:.0f} TFLOP/s.
  Measured for comparison: {reached:.0%}, GPT-124M with 64 x 1024 tokens, `{whole}.json`.
- Assumed of links, for each rank: {inside:.0f} GB/s inside a node of {node} GPUs, {between:.0f} GB/s between nodes.
- Assumed of collectives: {start:g} ms before the first byte.
- Left out: what needs more than {memory:.0f} GB on a GPU, at 16 bytes a parameter: weight, gradient, two averages of AdamW.
"""


def table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join("| " + " | ".join(map(str, line)) + " |" for line in lines) + "\n"


def figures(value: float, count: int = 3) -> str:
    """So many significant digits, without exponent."""
    rounded = float(f"{value:.{count - 1}e}")
    return f"{rounded:.{max(0, count - 1 - math.floor(math.log10(rounded))) if rounded else 0}f}"


def errors() -> Iterable[Sequence[object]]:
    """How far the clock is off for each measured shape, fitted without it; then for all matrices of a GPT."""
    for tier in TIERS:
        found = left_out(tier.points, tier.timed)
        for point in tier.points:
            yield tier.name, tier.method, point.name, figures(1e3 * point.seconds), f"{found[point.name] - 1:+.0%}"
        if tier.seen is None:
            seen = alone(tier.name.partition(",")[0])
            off = tier.seconds(matrices_of(MODELS[0].entries)) / seen - 1
            yield tier.name, "equalize_ alone", "all of GPT-124M", figures(1e3 * seen), f"{off:+.0%}"
        else:
            seen = 1e3 * tier.seen()
            off = tier.counted(matrices_of(MODELS[0].entries)) * 1e3 / seen - 1
            low, high = (figures(1e3 * each(in_a_step())) for each in (min, max))
            yield tier.name, "a whole step", "all of GPT-124M", f"{figures(seen)} ({low}-{high})", f"{off:+.0%}"


LAYOUTS = ("shards", "shards of a node", "copies")


def settings(assumed: Assumed) -> Iterable[tuple[Model, int, str, int]]:
    """Model, GPUs, layout, and the ranks of a group."""
    for model in MODELS:
        for gpus in GPUS:
            for layout, ranks in zip(LAYOUTS, (gpus, assumed.node, gpus), strict=True):
                held = 16 * model.parameters / (1 if layout == "copies" else ranks)
                same = (layout == "shards of a node" and gpus <= assumed.node) or (layout == "copies" and gpus == 1)
                if held <= assumed.memory and not same:
                    yield model, gpus, layout, ranks


def rows(assumed: Assumed) -> Iterable[Sequence[object]]:
    known: dict[tuple[str, int, bool], dict[str, Cost]] = {}
    for model, gpus, layout, ranks in settings(assumed):
        copied = layout == "copies"
        key = model.name, ranks, copied
        if key not in known:
            known[key] = costs(model, ranks, copied, TIERS, assumed)
        token = 6 * model.parameters / (assumed.share * assumed.peak)
        without = token * assumed.tokens
        for tier, each in known[key].items():
            ways = each.computing + each.together, each.computing + each.in_turn, each.everywhere
            times = each.computing, each.together, each.in_turn, each.everywhere, without
            shares = [figures(100 * way / without, 2) for way in ways]
            tokens = [figures(way / (0.1 * token), 2) for way in ways]
            yield model.name, gpus, layout, tier, *(figures(1e3 * each) for each in times), *shares, *tokens


def text(assumed: Assumed) -> str:
    reached = 6 * MODELS[0].parameters * 64 * 1024 / bare("gpt-64x1024")
    about = ABOUT.format(
        kernels=KERNELS, step=STEP, train=TRAIN, whole=WHOLE, reached=reached / assumed.peak, scale=TIERS[0].scale,
        tokens=assumed.tokens, share=assumed.share, peak=assumed.peak / 1e12,
        inside=assumed.inside / 1e9, node=assumed.node, between=assumed.between / 1e9, start=1e3 * assumed.start,
        memory=assumed.memory / 1e9,
    )  # fmt: skip
    models = (
        (model.name, model.layers, ", ".join(f"{n} of {m} x {k}" for (m, k), n in matrices_of(model.entries).items()),
         len(model.entries), figures(model.parameters / 1e9))
        for model in MODELS
    )  # fmt: skip
    ways = ("owners", "in turn", "everywhere")
    times = "computing", "moving", "moving in turn", "everywhere", "forward and backward"
    columns = ("model", "GPUs", "layout", "tier", *(f"{name}, ms" for name in times), *(f"{way}, %" for way in ways))
    return "\n".join(
        (
            about,
            "## Models\n",
            table(("model", "layers", "matrices", "entries", "parameters, 1e9"), models),
            "## Kernels\n\nOff: time predicted without the row, over the measured time, less one.\n",
            table(("tier", "measured", "matrices", "ms", "off"), errors()),
            "## Steps\n\nMoving: all buckets at once; in turn: one after the other. Everywhere: every rank computes all.\n"
            "Per cent of forward and backward. Tokens per GPU from which EGD adds at most a tenth to them.\n",
            table((*columns, *(f"{way}, tokens" for way in ways)), rows(assumed)),
        )
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="Markdown file for the tables")
    out: Path | None = parser.parse_args().out
    found = text(Assumed())
    if out is None:
        print(found, end="")
    else:
        out.write_text(found, encoding="utf-8")


if __name__ == "__main__":
    main()
