"""Whole eager training steps, from an MLP to a GPT: bare, with EGD, and with Muon. Each process is another measurement."""

from __future__ import annotations

import contextlib
import gc
import itertools
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import Optimizer

import egalitarian as eg
from egalitarian.lab.bench.measured import Parts, apart
from egalitarian.lab.bench.steps import LR, PEERS, installed, mlp, peer, title, version
from egalitarian.lab.bench.theme import BenchRow, Column, Setup, Theme, message, now, text, three_digits, times
from egalitarian.lab.config import SpecError, nearest
from egalitarian.lab.runs import environment

BARE = "bare"
PRECISIONS: tuple[Any, ...] = ("exact", "fast", "coarse", "auto")
BATCHES = 4
"""They take turns: a network that has learnt its one batch by heart has gradients like no other's."""
WARM_UP = 2
MEMORY = "peak MiB: the most memory allocated during a step, of a rival alone; memory ratio: over that of the bare step."
BASIS = ("source", "torch", "python", "hardware", "threads")
"""What must not have changed since a process whose numbers are used again."""
Batch = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class Workload:
    name: str
    about: str
    model: Callable[[], nn.Module]
    batch: Callable[[], Batch]
    optimizer: Callable[[Any], Optimizer]
    rounds: int = 25
    steps: int = 8
    """In a round, between two synchronisations."""
    processes: int = 5
    autocast: bool = False
    """bfloat16."""
    muon: bool = True
    """Whether every matrix that EGD takes is a 2-D parameter: Muon takes no other."""
    layout: torch.memory_format = torch.contiguous_format


class BasicBlock(nn.Module):
    """Of a ResNet: two 3 x 3 convolutions beside a short cut."""

    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        self.first, self.second = convolution(before, after, 3, stride), convolution(after, after, 3)
        self.short = nn.Identity() if stride == 1 and before == after else convolution(before, after, 1, stride)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.second(F.relu(self.first(x))) + self.short(x))


def convolution(before: int, after: int, side: int, stride: int = 1) -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(before, after, side, stride, side // 2, bias=False), nn.BatchNorm2d(after))


def resnet18(width: int = 64, classes: int = 10) -> nn.Module:
    """For images of 32 x 32: a 3 x 3 stem and no pooling before the four stages of two blocks."""
    widths = [width, width, 2 * width, 4 * width, 8 * width]
    stages = [
        nn.Sequential(BasicBlock(before, after, 1 if stage == 0 else 2), BasicBlock(after, after, 1))
        for stage, (before, after) in enumerate(itertools.pairwise(widths))
    ]
    ends = nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(widths[-1], classes)
    return nn.Sequential(convolution(3, width, 3), nn.ReLU(), *stages, *ends)


class GPTBlock(nn.Module):
    """Queries, keys and values are three layers: the same matrices to EGD and to Muon, which splits no parameter."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.attention_norm, self.mlp_norm = nn.LayerNorm(width), nn.LayerNorm(width)
        self.query, self.key, self.value, self.out = (nn.Linear(width, width) for _ in range(4))
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        normed = self.attention_norm(x)
        parts = (layer(normed).unflatten(-1, (self.heads, -1)) for layer in (self.query, self.key, self.value))
        q, k, v = (part.transpose(1, 2) for part in parts)
        x = x + self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))
        y: Tensor = x + self.down(F.gelu(self.up(self.mlp_norm(x)), approximate="tanh"))
        return y


class GPT(nn.Module):
    """GPT-2's smallest: 124M parameters, the head tied to the embedding. Logits of all tokens in one long row."""

    def __init__(self, vocabulary: int = 50304, length: int = 1024, layers: int = 12, width: int = 768, heads: int = 12):
        super().__init__()
        self.tokens, self.places = nn.Embedding(vocabulary, width), nn.Embedding(length, width)
        self.blocks = nn.Sequential(*(GPTBlock(width, heads) for _ in range(layers)))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)
        for module in self.modules():
            if isinstance(module, nn.Linear | nn.Embedding):
                nn.init.normal_(module.weight, std=0.02)
        self.head.weight = self.tokens.weight

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.tokens(tokens) + self.places.weight[: tokens.shape[1]]
        logits: Tensor = self.head(self.norm(self.blocks(x))).flatten(0, 1)
        return logits


def additions(count: int, modulus: int = 97) -> Batch:
    """Pairs of one-hot numbers, and their sums."""
    a, b = torch.randint(modulus, (2, count))
    return torch.cat([F.one_hot(a, modulus), F.one_hot(b, modulus)], 1).float(), (a + b) % modulus


def images(*shape: int) -> Batch:
    return torch.randn(shape), torch.randint(10, shape[:1])


def texts(count: int, length: int, vocabulary: int = 50304) -> Batch:
    tokens = torch.randint(vocabulary, (count, length + 1))
    return tokens[:, :-1].contiguous(), tokens[:, 1:].flatten()


def workloads(*, cuda: bool, quick: bool) -> list[Workload]:
    sgd = partial(torch.optim.SGD, lr=LR)
    first = partial(mlp, 194, 512, 97), partial(additions, 512)
    second = partial(mlp, 784, 200, 200, 10), partial(images, 200, 784)
    found = [
        Workload("mod97", "MLP 194-512-97 on addition mod 97, batch 512, SGD", *first, sgd),
        Workload("mlp", "MLP 784-200-200-10, batch 200, SGD", *second, sgd),
        *(_on_a_gpu(quick) if cuda else _on_a_cpu()),
    ]
    return [replace(each, rounds=2, steps=2, processes=2) for each in found] if quick else found


def _on_a_gpu(quick: bool) -> Iterator[Workload]:
    resnet = partial(resnet18, 8 if quick else 64), partial(images, 256, 3, 32, 32)
    sgd, adamw = partial(torch.optim.SGD, lr=LR, momentum=0.9), partial(torch.optim.AdamW, lr=1e-4, fused=True)
    about = "ResNet-18 for CIFAR, batch 256, bf16 autocast, channels last, SGD with momentum 0.9"
    yield Workload("resnet18", about, *resnet, sgd, autocast=True, muon=False, layout=torch.channels_last)
    gpt, length = partial(GPT, layers=2, width=96) if quick else GPT, 32 if quick else 1024
    for count in (4, 16, 64):
        about = f"GPT-124M, {count} x 1024 tokens, bf16 autocast, AdamW (fused)"
        batch = partial(texts, count, length)
        yield Workload(f"gpt-{count}x1024", about, gpt, batch, adamw, rounds=10, steps=3, processes=3, autocast=True)


def _on_a_cpu() -> Iterator[Workload]:
    resnet = partial(resnet18, 4), partial(images, 16, 3, 32, 32)
    sgd, adamw = partial(torch.optim.SGD, lr=LR, momentum=0.9), partial(torch.optim.AdamW, lr=1e-4)
    yield Workload("resnet-tiny", "ResNet-18 of width 4, batch 16, SGD with momentum 0.9", *resnet, sgd, muon=False)
    gpt = partial(GPT, 512, 64, layers=2, width=128, heads=4), partial(texts, 4, 64, 512)
    yield Workload("gpt-tiny", "GPT of 2 layers of width 128, 4 x 64 tokens, AdamW", *gpt, adamw, 10, 3, 3)


def chosen_workloads(setup: Setup) -> list[Workload]:
    """Those of `setup.only`, or all."""
    every = {workload.name: workload for workload in workloads(cuda=setup.cuda, quick=setup.quick)}
    for name in setup.only:
        if name not in every:
            elsewhere = any(name == each.name for each in workloads(cuda=not setup.cuda, quick=setup.quick))
            device = "cpu, since it is for a CPU" if setup.cuda else "cuda, since it needs a GPU"
            hint = f"use --device {device}" if elsewhere else nearest(name, every) or "leave it out for all"
            raise SpecError(f"--only must be one of {', '.join(every)}, got {name!r}; {hint}")
    return [every[name] for name in every if name in (setup.only or every)]


class Trainee:
    """One rival: a model of its own, with all that makes its steps."""

    def __init__(self, workload: Workload, model: nn.Module, optimizers: Sequence[Optimizer], batches: Sequence[Batch]):
        self.model = model
        self.optimizers = optimizers
        self.batches = itertools.cycle(batches)
        self.autocast = workload.autocast
        self.loss = torch.zeros(())

    def step(self) -> None:
        inputs, labels = next(self.batches)
        with torch.autocast(inputs.device.type, torch.bfloat16) if self.autocast else contextlib.nullcontext():
            loss = F.cross_entropy(self.model(inputs), labels)
        loss.backward()  # type: ignore[no-untyped-call]
        for optimizer in self.optimizers:
            optimizer.step()
        for optimizer in self.optimizers:
            optimizer.zero_grad()
        self.loss = loss.detach()


Build = Callable[[], Trainee]
"""Raises what the rival raises: its row gets a note."""


def rivals(workload: Workload, device: torch.device) -> dict[str, Build]:
    """By name, the bare optimizer first; alike at the start, on the same batches."""
    torch.manual_seed(1)
    batches = [(x.to(device), y.to(device)) for x, y in (workload.batch() for _ in range(BATCHES))]
    if workload.layout is torch.channels_last:
        batches = [(x.contiguous(memory_format=torch.channels_last), y) for x, y in batches]

    def trainee(optimizers: Callable[[Workload, nn.Module], list[Optimizer]]) -> Trainee:
        torch.manual_seed(0)
        with device:
            model: nn.Module = workload.model().to(memory_format=workload.layout)  # type: ignore[call-overload]
        return Trainee(workload, model, optimizers(workload, model), batches)

    found: dict[str, Build] = {BARE: partial(trainee, bare)}
    for precision in PRECISIONS:
        options: dict[str, Any] = (
            {"compute": torch.bfloat16} if workload.autocast and precision in ("exact", "fast") else {}
        )
        name = f"EGD {precision}" + (", compute=bf16" if options else "")
        found[name] = partial(trainee, partial(egd, precision=precision, **options))
    if workload.muon:
        found["torch.optim.Muon"] = partial(trainee, partial(muon, build=partial(torch.optim.Muon, lr=LR)))
        for package in filter(installed, PEERS):
            found[title(package)] = partial(trainee, partial(muon, build=partial(peer, package)))
    return found


def bare(workload: Workload, model: nn.Module) -> list[Optimizer]:
    return [workload.optimizer(model.parameters())]


def egd(workload: Workload, model: nn.Module, **options: Any) -> list[Optimizer]:
    optimizer = workload.optimizer(model.parameters())
    eg.attach(optimizer, model, eg.Polar(**options))
    return [optimizer]


def muon(workload: Workload, model: nn.Module, build: Callable[[list[Tensor]], Optimizer]) -> list[Optimizer]:
    """A Muon on the matrices that EGD takes, and the bare optimizer on the rest."""
    plan = eg.matrices(model)
    rest = workload.optimizer([entry.parameter for entry in plan.left])
    return [build([entry.parameter for entry in plan.taken]), rest]


def measure_process(name: str, number: int, device: str, quick: bool, report: Callable[[str], None]) -> dict[str, Any]:
    """Milliseconds of a step by rival and round, and notes on what failed; in the first process on a GPU memory, too."""
    setup = Setup(torch.device(device), quick, report=report, only=(name,))
    (workload,) = chosen_workloads(setup)
    builds = rivals(workload, setup.device)
    memory = peaks(builds, setup) if setup.cuda and number == 1 else {}
    trainees: dict[str, Trainee] = {}
    notes: dict[str, str] = {}
    for rival, build in builds.items():
        report(f"building {rival}")
        try:
            trainees[rival] = build()
        except Exception as error:  # of another package, or out of memory
            notes[rival] = f"failed: {message(error)}"
    ms = take_turns(trainees, workload, setup, notes)
    for rival, trainee in trainees.items():
        if rival not in notes and not trainee.loss.isfinite():
            notes[rival] = "loss not finite"
    return {"ms": ms, "notes": notes, "memory": memory, "rivals": list(builds)}


def take_turns(
    trainees: Mapping[str, Trainee], workload: Workload, setup: Setup, notes: dict[str, str]
) -> dict[str, list[float]]:
    """Of a step, round by round. Every second round goes backwards: no rival always comes after the same one."""
    taken: dict[str, list[float]] = {name: [] for name in trainees}
    for turn in range(-WARM_UP, workload.rounds):
        for name in list(taken)[:: -1 if turn % 2 else 1]:
            setup.report(f"{name}, warming up" if turn < 0 else f"round {turn + 1} of {workload.rounds}")
            try:
                start = now(setup.device)
                for _ in range(workload.steps):
                    trainees[name].step()
                ms = 1e3 * (now(setup.device) - start) / workload.steps
            except Exception as error:  # the others go on
                notes[name] = f"failed: {message(error)}"
                del taken[name]
            else:
                taken[name] += [ms] if turn >= 0 else []
    return taken


def peaks(builds: Mapping[str, Build], setup: Setup) -> dict[str, float]:
    """The most MiB allocated during a step of each rival, alone on the GPU. The first fills the libraries' memory."""
    found: dict[str, float] = {}
    for name in (BARE, *builds):
        setup.report(f"{name}, memory")
        with contextlib.suppress(Exception):  # the note comes with the time
            found[name] = _peak(builds[name], setup.device)
        gc.collect()  # an optimizer and its attachment hold each other
        torch.cuda.empty_cache()
    return found


def _peak(build: Build, device: torch.device) -> float:
    before = torch.cuda.memory_allocated(device)
    trainee = build()
    for _ in range(WARM_UP):
        trainee.step()
    torch.cuda.reset_peak_memory_stats(device)
    trainee.step()
    torch.cuda.synchronize(device)
    return (torch.cuda.max_memory_allocated(device) - before) / 2**20


def rows(setup: Setup) -> Iterator[BenchRow]:
    """Measures what is asked for and not stored; rows of every workload of which something is."""
    asked = {workload.name: workload for workload in chosen_workloads(setup)}
    parts = Parts("train", basis(setup), setup)
    wanted = [f"{each.name}/{number}" for each in asked.values() for number in range(1, each.processes + 1)]
    stored = sum(name in parts for name in wanted)
    if stored:
        rest = "going on with the rest" if stored < len(wanted) else "delete the file to measure again"
        setup.note(f"{stored} of {len(wanted)} processes are already measured in {parts.path}; {rest}.")
    for workload in workloads(cuda=setup.cuda, quick=setup.quick):
        names = [f"{workload.name}/{number}" for number in range(1, workload.processes + 1)]
        failure = ""
        for number, name in enumerate(names, 1):
            if workload.name not in asked or name in parts:
                continue
            work = partial(measure_process, workload.name, number, str(setup.device), setup.quick)
            try:
                parts.add(name, apart(work, partial(_report, setup, name)))
            except RuntimeError as error:  # a later process may do better, and so may a rerun
                failure = f"failed: {message(error)}"
        yield from summarised(workload.name, [parts[name] for name in names if name in parts])
        if failure:
            yield BenchRow(workload.name, "a process", note=failure)


def _report(setup: Setup, name: str, doing: str) -> None:
    setup.report(f"{name}: {doing}")


def basis(setup: Setup) -> dict[str, Any]:
    """What a stored process must have in common with this one."""
    where = environment(setup.device)
    return {key: where[key] for key in BASIS} | {"peers": {name: version(name) for name in filter(installed, PEERS)}}


def summarised(workload: str, parts: Sequence[Mapping[str, Any]]) -> Iterator[BenchRow]:
    """A row for each rival: medians over the processes, with their range."""
    for name in dict.fromkeys(name for part in parts for name in part["rivals"]):
        timed = [part for part in parts if part["ms"].get(name)]
        all_ms = [statistics.median(part["ms"][name]) for part in timed]
        ratios = [_ratio(part["ms"][name], part["ms"][BARE]) for part in timed if part["ms"].get(BARE)]
        peak, base = (
            next((part["memory"][each] for part in parts if each in part["memory"]), None) for each in (name, BARE)
        )
        note = next((part["notes"][name] for part in parts if name in part["notes"]), "")
        numbers = {
            "ms": statistics.median(all_ms) if all_ms else None,
            "ms_range": _range(all_ms),
            "ratio": statistics.median(ratios) if ratios else None,
            "ratio_range": None if name == BARE else _range(ratios),
            "memory": peak,
            "memory_ratio": peak / base if peak and base else None,
            "all_ms": all_ms,
            "all_ratios": ratios,
        }
        yield BenchRow(workload, name, len(timed), numbers, note)


def _ratio(mine: Sequence[float], theirs: Sequence[float]) -> float:
    """Within a process, round by round: a busy moment hits both sides."""
    return statistics.median(one / other for one, other in zip(mine, theirs, strict=True))


def _range(values: Sequence[float]) -> str | None:
    return f"{three_digits(min(values))}-{three_digits(max(values))}" if values else None


def _legend(rows: Sequence[BenchRow], quick: bool) -> str:
    """Of memory, where it was measured; and of the workloads of these rows."""
    every = {each.name: each for cuda in (True, False) for each in workloads(cuda=cuda, quick=quick)}
    found = [every[name] for name in dict.fromkeys(row.group for row in rows) if name in every]
    lines = [MEMORY] if any(row.numbers.get("memory") for row in rows) else []
    lines += [f"{each.name}: {each.about}; {each.rounds * each.steps} steps of each rival." for each in found]
    return "\n".join(lines)


THEME = Theme(
    name="train",
    title="A whole training step, eager: bare, with EGD, and with Muon",
    about=(
        "Forward, backward, optimizer step and zero_grad. Nothing is compiled, except what a package compiles itself. The "
        "rivals take turns, each with a model of its own.\n"
        "Muon has the matrices that EGD takes, the bare optimizer the rest. Other packages are rivals where installed.\n"
        "n: processes; a value is the median over them, with its range.\n"
        f"ratio: times the step of `{BARE}`, by rounds within a process."
    ),
    groups="workload",
    columns=(
        Column("ms", "ms a step", three_digits),
        Column("ms_range", "range of ms", text),
        Column("ratio", "ratio", times),
        Column("ratio_range", "range of ratio", text),
        Column("memory", "peak MiB", three_digits),
        Column("memory_ratio", "memory ratio", times),
        Column("n", "n", text),
    ),
    number="ms",
    graph_key="",
    baseline=BARE,
    ratio_is_speedup=False,
    rows=rows,
    legend=_legend,
)
