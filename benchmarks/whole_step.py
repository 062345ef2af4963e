"""What EGD adds to a whole eager training step: forward, backward, optimizer step, zero_grad (results/whole-step_*.md).

PYTHONPATH=src python benchmarks/whole_step.py                   # all that this machine can: a GPU where there is one
PYTHONPATH=src python benchmarks/whole_step.py --only gpt        # the workloads whose names begin so; several may be given
PYTHONPATH=src python benchmarks/whole_step.py --quick --out /tmp/try  # does it run? Its numbers are worth nothing

On a CPU (`--device cpu` where a GPU is there, too) the two small networks alone, by one thread. Needs torch alone.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import itertools
import json
import platform
import re
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import date
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import Optimizer

import egalitarian as eg

BATCHES = 4
"""They take turns: a network that has learnt its one batch by heart has gradients like no other's."""
WARM_UP = 2
BARE = "bare"
Batch = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class Workload:
    name: str
    about: str
    model: Callable[[], nn.Module]
    batch: Callable[[], Batch]
    optimizer: Callable[[Any], Optimizer]
    rounds: int
    steps: int
    """In a round, between two synchronisations."""
    autocast: bool = False
    """bfloat16, where a GPU is."""
    muon: bool = True
    """Whether every matrix that EGD takes is a 2-D parameter: Muon takes no other."""
    layout: torch.memory_format = torch.contiguous_format


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
        loss.backward()
        for optimizer in self.optimizers:
            optimizer.step()
        for optimizer in self.optimizers:
            optimizer.zero_grad()
        self.loss = loss.detach()


class BasicBlock(nn.Module):
    """Of a ResNet: two 3 x 3 convolutions beside a short cut."""

    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(before, after, 3, stride, 1, bias=False)
        self.first_norm = nn.BatchNorm2d(after)
        self.second = nn.Conv2d(after, after, 3, 1, 1, bias=False)
        self.second_norm = nn.BatchNorm2d(after)
        self.short = nn.Identity() if stride == 1 and before == after else projection(before, after, stride)

    def forward(self, x: Tensor) -> Tensor:
        inner = F.relu(self.first_norm(self.first(x)))
        return F.relu(self.second_norm(self.second(inner)) + self.short(x))


def projection(before: int, after: int, stride: int) -> nn.Module:
    return nn.Sequential(nn.Conv2d(before, after, 1, stride, bias=False), nn.BatchNorm2d(after))


def resnet18(classes: int = 10, width: int = 64) -> nn.Module:
    """For images of 32 x 32: a 3 x 3 stem and no pooling before the four stages of two blocks."""
    stem = nn.Sequential(nn.Conv2d(3, width, 3, 1, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU())
    widths = [width, width, 2 * width, 4 * width, 8 * width]
    stages = [
        nn.Sequential(BasicBlock(before, after, 1 if stage == 0 else 2), BasicBlock(after, after, 1))
        for stage, (before, after) in enumerate(itertools.pairwise(widths))
    ]
    return nn.Sequential(stem, *stages, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(widths[-1], classes))


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
        q, k, v = (
            layer(normed).unflatten(-1, (self.heads, -1)).transpose(1, 2) for layer in (self.query, self.key, self.value)
        )
        x = x + self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.mlp_norm(x)), approximate="tanh"))


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
        return self.head(self.norm(self.blocks(x))).flatten(0, 1)


def mlp(*widths: int) -> nn.Module:
    layers = [[nn.Linear(before, after), nn.ReLU()] for before, after in itertools.pairwise(widths)]
    return nn.Sequential(*itertools.chain(*layers))[:-1]


def additions(count: int, modulus: int = 97) -> Batch:
    """Pairs of one-hot numbers, and their sums."""
    a, b = torch.randint(modulus, (2, count))
    return torch.cat([F.one_hot(a, modulus), F.one_hot(b, modulus)], 1).float(), (a + b) % modulus


def images(*shape: int) -> Batch:
    return torch.randn(shape), torch.randint(10, shape[:1])


def texts(count: int, length: int, vocabulary: int = 50304) -> Batch:
    tokens = torch.randint(vocabulary, (count, length + 1))
    return tokens[:, :-1].contiguous(), tokens[:, 1:].flatten()


def workloads(device: torch.device) -> Iterator[Workload]:
    sgd = partial(torch.optim.SGD, lr=1e-3)
    yield Workload(
        "mod97", "mod-97 MLP 194-512-97, batch 512, SGD", partial(mlp, 194, 512, 97), partial(additions, 512), sgd, 25, 20
    )
    yield Workload(
        "mlp", "MLP 784-200-200-10, batch 200, SGD", partial(mlp, 784, 200, 200, 10), partial(images, 200, 784), sgd, 25, 20
    )
    if device.type == "cpu":
        return
    yield Workload(
        "resnet18",
        "ResNet-18 for CIFAR, batch 256, bf16 autocast, channels last, SGD with momentum 0.9",
        resnet18,
        partial(images, 256, 3, 32, 32),
        partial(torch.optim.SGD, lr=1e-3, momentum=0.9),
        rounds=15,
        steps=5,
        autocast=True,
        muon=False,
        layout=torch.channels_last,
    )
    for count, rounds, steps in ((4, 11, 4), (16, 9, 3), (64, 7, 2)):
        yield Workload(
            f"gpt-{count}x1024",
            f"GPT-124M, {count} x 1024 tokens, bf16 autocast, AdamW (fused)",
            GPT,
            partial(texts, count, 1024),
            partial(torch.optim.AdamW, lr=1e-4, fused=True),
            rounds,
            steps,
            autocast=True,
        )


def transforms(workload: Workload) -> dict[str, eg.Polar]:
    if not workload.autocast:
        return {"EGD exact": eg.Polar(), "EGD fast": eg.Polar(precision="fast")}
    half = torch.bfloat16
    return {
        "EGD exact, compute=bf16": eg.Polar(compute=half),
        "EGD fast, compute=bf16": eg.Polar(compute=half, precision="fast"),
        "EGD fast, rtol=1e-4": eg.Polar(precision="fast", rtol=1e-4),
    }


def trainees(workload: Workload, device: torch.device) -> dict[str, Trainee]:
    """By name, the bare optimizer first; alike at the start, on the same batches."""

    def model() -> nn.Module:
        torch.manual_seed(0)
        with device:
            return workload.model().to(memory_format=workload.layout)

    torch.manual_seed(1)
    batches = [(x.to(device), y.to(device)) for x, y in (workload.batch() for _ in range(BATCHES))]
    if workload.layout is torch.channels_last:
        batches = [(x.contiguous(memory_format=torch.channels_last), y) for x, y in batches]
    trainee = partial(Trainee, workload, batches=batches)
    own = model()
    found = {BARE: trainee(own, [workload.optimizer(own.parameters())])}
    for name, transform in transforms(workload).items():
        own = model()
        optimizer = workload.optimizer(own.parameters())
        eg.attach(optimizer, own, transform)
        found[name] = trainee(own, [optimizer])
    if workload.muon:
        own = model()
        plan = eg.matrices(own)
        muon = torch.optim.Muon([entry.parameter for entry in plan.taken], lr=1e-3)
        rest = workload.optimizer([entry.parameter for entry in plan.left])
        found["torch.optim.Muon"] = trainee(own, [muon, rest])
    return found


def milliseconds(rivals: dict[str, Trainee], workload: Workload, device: torch.device) -> dict[str, list[float]]:
    """Of a step, round by round. Every second round goes backwards: no rival always comes after the same one."""
    synchronize = torch.cuda.synchronize if device.type == "cuda" else lambda: None
    times: dict[str, list[float]] = {name: [] for name in rivals}
    for turn in range(-WARM_UP, workload.rounds):
        for name in list(rivals)[:: -1 if turn % 2 else 1]:
            synchronize()
            start = time.perf_counter()
            for _ in range(workload.steps):
                rivals[name].step()
            synchronize()
            if turn >= 0:
                times[name].append(1e3 * (time.perf_counter() - start) / workload.steps)
    return times


def measured(workload: Workload, device: torch.device) -> list[dict[str, Any]]:
    """A row for each rival. The ratio is taken round by round, so that a busy moment hits both of its sides."""
    rivals = trainees(workload, device)
    times = milliseconds(rivals, workload, device)
    rows = []
    for name, own in times.items():
        ratios = [mine / bare for mine, bare in zip(own, times[BARE], strict=True)]
        low, ms, high = statistics.quantiles(own, method="inclusive")
        low_ratio, ratio, high_ratio = statistics.quantiles(ratios, method="inclusive")
        rows.append(
            {
                "workload": workload.name,
                "about": workload.about,
                "rival": name,
                "ms": ms,
                "ms_quartiles": [low, high],
                "ratio": ratio,
                "ratio_quartiles": [low_ratio, high_ratio],
                "n": len(own),
                "steps": workload.steps,
                "note": "" if rivals[name].loss.isfinite() else "loss not finite",
            }
        )
    return rows


def line(row: dict[str, Any]) -> str:
    if "ms" not in row:
        return f"| {row['about']} | {row['note']} | | | | | |"
    rival = row["rival"] + (f" ({row['note']})" if row["note"] else "")
    (low, high), (low_ratio, high_ratio) = row["ms_quartiles"], row["ratio_quartiles"]
    times = "1 | " if row["rival"] == BARE else f"{row['ratio']:.2f} | {low_ratio:.2f}-{high_ratio:.2f}"
    return f"| {row['about']} | {rival} | {row['ms']:.2f} | {low:.2f}-{high:.2f} | {times} | {row['n']} x {row['steps']} |"


def hardware(device: torch.device) -> str:
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    with contextlib.suppress(OSError, StopIteration):
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(each.partition(":")[2].strip() for each in lines if each.startswith("model name"))
    return platform.processor() or "unknown"


def slug(name: str) -> str:
    """'Intel(R) Xeon(R) Processor @ 2.80GHz' is intel-xeon."""
    words = re.sub(r"@.*|\((r|tm)\)|\b(processor|cpu)\b", " ", name.lower())
    return "-".join(re.findall(r"[a-z0-9]+", words)) or "unknown"


def heading(environment: dict[str, Any]) -> list[str]:
    threads = "" if environment["device"] == "cuda" else f"{environment['threads']} thread, "
    versions = f"torch {environment['torch']}, Python {environment['python']}, egalitarian {environment['egalitarian']}"
    quick = " **A quick try: the numbers are worth nothing.**" if environment["quick"] else ""
    return [
        "# A whole training step, eager: bare, with EGD, and with Muon",
        "",
        f"{environment['hardware']}, {threads}{versions}, {environment['date']}, eager: nothing compiled.{quick}",
        "",
        "Forward, backward, optimizer step and zero_grad; ms a step, medians of n rounds x steps each. The rivals take "
        "turns, each with a model of its own. Times the bare step: median of the rounds' ratios. Quartiles beside both. "
        "Muon has the matrices that EGD takes, the bare optimizer the rest.",
        "",
        "| workload | rival | ms a step | quartiles | times the bare step | quartiles | n |",
        "|---|---|---|---|---|---|---|",
    ]


def chosen(every: Sequence[Workload], only: Sequence[str]) -> list[Workload]:
    names = ", ".join(workload.name for workload in every)
    for prefix in only:
        if not any(workload.name.startswith(prefix) for workload in every):
            raise SystemExit(f"--only must begin one of {names}, got {prefix!r}")
    return [workload for workload in every if not only or workload.name.startswith(tuple(only))]


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--only", nargs="+", default=[], metavar="NAME", help="mod97, mlp; on a GPU resnet18, gpt-4x1024, ..."
    )
    parser.add_argument("--quick", action="store_true", help="two rounds of two steps")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    parser.add_argument("--date", default=date.today().isoformat(), help="for the heading and the files' names; today")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda" if torch.cuda.is_available() else "cpu")
    given = parser.parse_args(arguments)
    device = torch.device(given.device)
    if device.type == "cpu":
        torch.set_num_threads(1)
    asked = chosen(list(workloads(device)), given.only)
    environment = {
        "hardware": hardware(device),
        "device": device.type,
        "threads": torch.get_num_threads(),
        "torch": torch.__version__.split("+")[0],
        "python": platform.python_version(),
        "egalitarian": eg.__version__,
        "date": given.date,
        "quick": given.quick,
    }
    stem = "-".join(["whole-step", *given.only, *["quick"] * given.quick])
    file = given.out / f"{stem}_{slug(environment['hardware'])}_{given.date}"
    lines = heading(environment)
    rows: list[dict[str, Any]] = []
    given.out.mkdir(parents=True, exist_ok=True)
    print("\n".join(lines), flush=True)
    for workload in asked:
        try:
            new = measured(replace(workload, rounds=2, steps=2) if given.quick else workload, device)
        except torch.OutOfMemoryError:
            new = [{"workload": workload.name, "about": workload.about, "note": "not enough memory"}]
        rows += new
        print("\n".join(map(line, new)), flush=True)
        found = {"environment": environment, "complete": workload is asked[-1], "rows": rows}
        # after every workload: a run that is cut short has left what it found
        Path(f"{file}.md").write_text("\n".join([*lines, *map(line, rows), ""]))
        Path(f"{file}.json").write_text(json.dumps(found, indent=1) + "\n")
        gc.collect()  # an optimizer and its attachment hold each other
        if device.type == "cuda":
            torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
