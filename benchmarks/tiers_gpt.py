"""May the coarse polar factor become a default? Exact and coarse on a small language model.

    PYTHONPATH=src python benchmarks/tiers_gpt.py                       # seven minutes on an H200
    PYTHONPATH=src python benchmarks/tiers_gpt.py --quick --out /tmp/try # does it run? Its numbers are worth nothing

A byte-level GPT of 11M parameters on Python source: the .py files of this machine's Python and its packages, sorted by
path, each content once, up to 120 MB. The last 2 % of them, by file, are held out. A run reads part of the rest, no byte
twice. Momentum comes before the factor. SGD has the matrices that EGD takes, AdamW everything else.

Writes tiers-gpt_HARDWARE_DATE.json, .md and .png after every run. The same command with the same --date resumes.
"""

from __future__ import annotations

import argparse
import dataclasses
import hashlib
import itertools
import math
import statistics
import sysconfig
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from matplotlib.figure import Figure
from tiers import Deadline, Results, Row, Tier, compared, look, options, png, steps_of, tiers
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import Optimizer

import egalitarian as eg
from egalitarian.lab.report.figures import WIDTH, styled

MOST = 120_000_000
"""Bytes of the corpus."""
HELD_OUT = 0.02
SHARES = (5e-3, 2e-2)
"""Directions below the first are rounding noise under bfloat16 autocast, those above the second are strong. Both are shares
of the largest singular value."""
MARGIN = 0.005
"""Nats per byte by which coarse may be worse than exact."""


@dataclass(frozen=True)
class Setup:
    """Sizes and settings of a run."""

    layers: int = 6
    width: int = 384
    heads: int = 6
    length: int = 512
    batch: int = 64
    steps: int = 800
    warmup: float = 0.05
    last: float = 0.1
    """The share of the learning rates that is left at the end."""
    lr: float = 0.03
    momentum: float = 0.9
    other_lr: float = 2e-3
    validation: int = 64
    """Batches, the same for every run."""
    seeds: tuple[int, ...] = (0, 1, 2)
    corpus: int = MOST
    report: int = 50
    """Steps between two lines of progress."""

    @property
    def needed(self) -> int:
        """Windows of the training part that a run reads."""
        return self.steps * self.batch


QUICK = Setup(
    layers=2, width=32, heads=2, length=64, batch=8, steps=20, validation=4, seeds=(0, 1), corpus=2_000_000, report=5
)


@dataclass(frozen=True)
class Corpus:
    """Bytes as int64 windows would take eight times the memory: they stay bytes until a batch is taken."""

    train: Tensor
    validation: Tensor
    about: Row


def sources() -> Iterator[Path]:
    """The .py files of Python and of its packages, sorted by path."""
    folders = {Path(sysconfig.get_path(kind)).resolve() for kind in ("stdlib", "platstdlib", "purelib", "platlib")}
    yield from sorted({file for folder in folders for file in folder.rglob("*.py")}, key=lambda file: file.as_posix())


def corpus(most: int) -> Corpus:
    """Each content once, whole files only, up to so many bytes."""
    texts, known, total = [], set(), 0
    for file in sources():
        try:
            text = file.read_bytes()
        except OSError:
            continue
        digest = hashlib.sha256(text).digest()
        if total + len(text) > most:
            break
        if not text or digest in known:
            continue
        known.add(digest)
        texts.append(text)
        total += len(text)
    held_out, first = 0, len(texts)
    while first > 0 and held_out < HELD_OUT * total:
        first -= 1
        held_out += len(texts[first])
    train, validation = (b"".join(part) for part in (texts[:first], texts[first:]))
    about = {
        "files": len(texts),
        "bytes": total,
        "validation_files": len(texts) - first,
        "validation_bytes": held_out,
        "sha256": hashlib.sha256(train + validation).hexdigest(),
    }
    return Corpus(*(torch.frombuffer(bytearray(part), dtype=torch.uint8) for part in (train, validation)), about)


def windows(text: Tensor, length: int, indices: Tensor) -> tuple[Tensor, Tensor]:
    """Inputs and next bytes of the windows with these indices; neighbours share one byte, as a target and an input."""
    positions = indices[:, None] * length + torch.arange(length + 1, device=indices.device)
    found = text[positions].long()
    return found[:, :-1].contiguous(), found[:, 1:].flatten()


def count_windows(text: Tensor, length: int) -> int:
    return (len(text) - 1) // length


class Block(nn.Module):
    """Queries, keys and values are three layers: three matrices to equalise."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.attention_norm, self.mlp_norm = nn.LayerNorm(width), nn.LayerNorm(width)
        self.query, self.key, self.value, self.out = (nn.Linear(width, width) for _ in range(4))
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        normed = self.attention_norm(x)
        q, k, v = (
            layer(normed).unflatten(-1, (self.heads, -1)).transpose(1, 2) for layer in (self.query, self.key, self.value)
        )
        x = x + self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.mlp_norm(x)), approximate="tanh"))


class GPT(nn.Module):
    """Of bytes, the head tied to the embedding. Logits of all tokens in one long row."""

    def __init__(self, setup: Setup) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(256, setup.width), nn.Embedding(setup.length, setup.width)
        self.blocks = nn.Sequential(*(Block(setup.width, setup.heads) for _ in range(setup.layers)))
        self.norm = nn.LayerNorm(setup.width)
        self.head = nn.Linear(setup.width, 256, bias=False)
        for module in self.modules():
            if isinstance(module, nn.Linear | nn.Embedding):
                nn.init.normal_(module.weight, std=0.02)
        self.head.weight = self.tokens.weight

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.tokens(tokens) + self.places.weight[: tokens.shape[1]]
        return self.head(self.norm(self.blocks(x))).flatten(0, 1)


class Run:
    """One seed with one tier: the same start and the same batches for every tier."""

    def __init__(self, setup: Setup, tier: Tier, seed: int, data: Corpus, device: torch.device) -> None:
        self.setup, self.data, self.device = setup, data, device
        torch.manual_seed(seed)
        self.model = GPT(setup).to(device)
        self.plan = eg.matrices(self.model)
        taken, left = ([entry.parameter for entry in part] for part in (self.plan.taken, self.plan.left))
        self.sgd = torch.optim.SGD(taken, lr=setup.lr)
        self.adamw = torch.optim.AdamW(left, lr=setup.other_lr, fused=device.type == "cuda")
        self.polar = polar(tier)
        eg.attach(self.sgd, self.plan, [eg.Momentum(setup.momentum, plan=self.plan), self.polar])
        order = torch.randperm(count_windows(data.train, setup.length), generator=torch.Generator().manual_seed(seed))
        self.batches = iter(order[: setup.needed].to(device).split(setup.batch))
        self.rates = [(group, group["lr"]) for optimizer in self.optimizers for group in optimizer.param_groups]

    @property
    def optimizers(self) -> tuple[Optimizer, Optimizer]:
        return self.sgd, self.adamw

    def loss(self, text: Tensor, indices: Tensor) -> Tensor:
        inputs, targets = windows(text, self.setup.length, indices)
        with torch.autocast(self.device.type, torch.bfloat16):
            logits = self.model(inputs)
        return F.cross_entropy(logits.float(), targets)

    def backward(self) -> Tensor:
        loss = self.loss(self.data.train, next(self.batches))
        loss.backward()
        return loss.detach()

    def update(self, step: int) -> None:
        for group, rate in self.rates:
            group["lr"] = rate * share_at(step, self.setup)
        for optimizer in self.optimizers:
            optimizer.step()
            optimizer.zero_grad()

    @torch.no_grad()
    def validated(self) -> float:
        """Nats per byte over windows at equal distances."""
        setup, text = self.setup, self.data.validation
        many = count_windows(text, setup.length)
        wanted = min(setup.validation * setup.batch, many)
        indices = (torch.arange(wanted, device=self.device) * many) // wanted
        parts = indices.split(setup.batch)
        return math.fsum(self.loss(text, part).item() * len(part) for part in parts) / wanted


def polar(tier: Tier) -> eg.Polar:
    """Exact with the cut-off of bfloat16's noise; coarse needs none."""
    half = {"compute": torch.bfloat16} if tier.precision == "exact" else {}
    return eg.Polar(**tier.options, **half)


def share_at(step: int, setup: Setup) -> float:
    """Of the learning rates: a linear rise, then a linear fall."""
    rise = max(1, round(setup.warmup * setup.steps))
    if step < rise:
        return (step + 1) / rise
    return 1 - (1 - setup.last) * (step - rise) / max(1, setup.steps - 1 - rise)


def first_errors(run: Run) -> Row:
    """Of the factors of the gradients that the run has now, against a float64 SVD; medians over the matrices."""
    found = []
    for entry in run.plan.taken:
        assert entry.parameter.grad is not None
        for target in entry.targets:
            G = target.fold(entry.parameter.grad)
            found.append(compared(G.double()[None], factor(run.polar, G).double()[None], SHARES))
    errors = [(square / rank).sqrt().flatten() for square, rank, _ in found]
    middle = torch.stack(errors).median(0).values.tolist()
    largest = max(top.max().item() for _, _, top in found)
    return {"error": middle[0], "strong_error": middle[1], "largest_singular_value": largest}


def factor(transform: eg.Polar, G: Tensor) -> Tensor:
    """What the transform makes of one matrix."""
    layer = torch.nn.Linear(G.shape[1], G.shape[0], bias=False, device=G.device)
    layer.weight.grad = G.clone()
    eg.equalize_(eg.matrices({"weight": layer.weight}, include=["weight"]), transform)
    return layer.weight.grad


def now(device: torch.device) -> float:
    """Seconds, when all work on the device is done."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


def trained(setup: Setup, tier: Tier, seed: int, data: Corpus, device: torch.device) -> Row:
    with steps_of(tier):
        run = Run(setup, tier, seed, data, device)
        begin, curve, row = now(device), [], {}
        start = begin
        for step in range(setup.steps):
            loss = run.backward()
            if step == 0:
                row = first_errors(run)
            run.update(step)
            if step == setup.steps // 10:  # by then everything is warm
                start, first = now(device), step + 1
            if step % setup.report == 0 or step == setup.steps - 1:
                curve.append([step, loss.item()])
                print(f"  {tier.name}, seed {seed}, step {step}: {loss.item():.4f} nats per byte", flush=True)
                if not math.isfinite(loss.item()):
                    break
        else:
            row["ms_per_step"] = 1e3 * (now(device) - start) / (setup.steps - first)
        validation = run.validated()
    finite = math.isfinite(validation)
    seconds = now(device) - begin
    return {
        "tier": tier.name,
        "seed": seed,
        "loss": validation if finite else None,
        **row,
        "seconds": seconds,
        "curve": curve,
    }


def verdict(name: str, rows: Sequence[Row]) -> str:
    """The gate: the mean of the seeds that both have is at most so much above exact's."""
    mine, theirs = ({row["seed"]: row["loss"] for row in rows if row["tier"] == tier} for tier in (name, "exact"))
    shared = mine.keys() & theirs.keys()
    if name == "exact" or not shared:
        return ""
    if any(mine[seed] is None for seed in shared):
        return "no: diverged"
    above = statistics.fmean(mine[seed] - theirs[seed] for seed in shared)
    return f"{'yes' if above <= MARGIN else 'no'}: {above:+.4f}"


def line(name: str, rows: Sequence[Row]) -> str:
    own = [row for row in rows if row["tier"] == name]
    losses = [math.nan if row["loss"] is None else row["loss"] for row in own]
    each = ", ".join(f"{loss:.4f}" for loss in losses)
    numbers = [statistics.median(row[key] for row in own) for key in ("error", "strong_error", "largest_singular_value")]
    steps = [row["ms_per_step"] for row in own if "ms_per_step" in row]
    ms = f"{statistics.median(steps):.1f}" if steps else ""
    errors = f"{numbers[0]:.1e} | {numbers[1]:.1e} | {numbers[2]:.3f}"
    return f"| {name} | {statistics.fmean(losses):.4f} | {each} | {errors} | {ms} | {verdict(name, rows)} |"


def names_in(rows: Sequence[Row]) -> list[str]:
    return list(dict.fromkeys(row["tier"] for row in rows))


def publish(results: Results, setup: Setup) -> None:
    about = results.about["corpus"]
    lines = [
        *results.heading("Exact and coarse polar factors in a small language model"),
        f"A byte-level GPT: {setup.layers} layers, width {setup.width}, {setup.heads} heads, context {setup.length}. "
        f"{setup.steps} steps of {setup.batch} x {setup.length} bytes, bf16 autocast. Momentum {setup.momentum:g} before "
        f"the factor, SGD at lr {setup.lr:g} on the matrices, AdamW at {setup.other_lr:g} on the rest; both rise over "
        f"{setup.warmup:.0%} of the steps, then fall linearly to {setup.last:.0%}.",
        "",
        f"Corpus: {about['files']} files, {about['bytes']} bytes of Python source, sha256 {about['sha256'][:16]}. "
        f"Held out: the last {about['validation_files']} files, {about['validation_bytes']} bytes.",
        "",
        "Nats per byte of the held-out files. Error: of the factors of the first gradients, |P - U Vᵀ|_F / sqrt(r) against "
        f"a float64 SVD with cut-off {SHARES[0]:g}, median over matrices; strong: over directions above {SHARES[1]:g} of "
        "the largest. Largest: the factors' largest singular value.",
        "",
        f"May be a default: the mean is at most {MARGIN:g} above exact's, over the seeds that both have.",
        "",
        "| tier | mean | by seed | error | strong | largest | ms a step | may be a default |",
        "|---|---|---|---|---|---|---|---|",
        *(line(name, results.rows) for name in names_in(results.rows)),
        "",
        f"![loss by tier and seed, and training loss]({results.stem.name}.png)",
        "",
    ]
    results.write("md", "\n".join(lines))
    results.write("png", draw(results.rows))


@styled
def draw(rows: Sequence[Row]) -> bytes:
    """By tier the loss on held-out bytes, a line for each seed; and the training loss of the first seed."""
    figure = Figure(figsize=(WIDTH, 2.8), layout="constrained")
    left, right = figure.subplots(1, 2)
    names = names_in(rows)
    for seed in dict.fromkeys(row["seed"] for row in rows):
        own = [row for row in rows if row["seed"] == seed and row["loss"] is not None]
        places, losses = [names.index(row["tier"]) for row in own], [row["loss"] for row in own]
        left.plot(places, losses, color="0.6", zorder=1)
        if own:
            left.annotate(f"seed {seed}", (places[-1], losses[-1]), (8, 0), textcoords="offset points", va="center")
    for place, name in enumerate(names):
        own = [row for row in rows if row["tier"] == name and row["loss"] is not None]
        for row in own[:1]:
            steps, losses = zip(*row["curve"], strict=True)
            right.plot(steps, losses, color=look(name)["color"])
        left.plot([place] * len(own), [row["loss"] for row in own], label=name, linestyle="", **look(name))
    left.set(xlim=(-0.4, len(names) - 0.3), ylabel="nats per byte, held out")
    left.set_xticks(range(len(names)), names)
    right.set(xlabel="step", ylabel="nats per byte, one batch", ylim=(0, None))
    figure.legend(*left.get_legend_handles_labels(), loc="outside lower center", ncols=5)
    return png(figure)


def loaded(setup: Setup, device: torch.device) -> Corpus:
    start = time.perf_counter()
    data = corpus(setup.corpus)
    print(f"corpus: {data.about}, {time.perf_counter() - start:.0f} s", flush=True)
    found = count_windows(data.train, setup.length)
    if found < setup.needed:
        raise SystemExit(
            f"the corpus must have {setup.needed} windows of {setup.length} bytes, got {found}; lower --train-steps"
        )
    return dataclasses.replace(data, train=data.train.to(device), validation=data.validation.to(device))


def main(arguments: Sequence[str] | None = None) -> None:
    parser = options(__doc__)
    parser.add_argument("--train-steps", type=int, help="of a run; 800")
    given: argparse.Namespace = parser.parse_args(arguments)
    device, deadline = torch.device(given.device), Deadline(given.minutes)
    setup = QUICK if given.quick else Setup()
    if given.train_steps:
        setup = dataclasses.replace(setup, steps=given.train_steps)
    data, results = loaded(setup, device), Results.read("tiers-gpt", given, device)
    results.about |= {"setup": dataclasses.asdict(setup), "corpus": data.about}
    rivals = tiers(given.steps, device, ("exact", "coarse"))
    known: dict[str, Any] = {"sha256": data.about["sha256"], "steps": setup.steps}
    for seed, tier in itertools.product(setup.seeds, rivals):
        if results.has(tier=tier.name, seed=seed, **known):
            print(f"{tier.name}, seed {seed}: known", flush=True)
        elif not deadline.allows("run"):
            print(f"{tier.name}, seed {seed}: no time left; the same command resumes", flush=True)
        else:
            row = trained(setup, tier, seed, data, device)
            deadline.took("run", row["seconds"])
            results.add({**row, **known})
            publish(results, setup)
            print(line(tier.name, results.rows), flush=True)


if __name__ == "__main__":
    main()
