"""`egalitarian bench train`: each process once, also after a kill; failures as notes; ratios within a process."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from small import CPU

import egalitarian as eg
from egalitarian.lab.bench import BenchRow, Setup, chosen_workloads, measure_theme, measured, steps, train
from egalitarian.lab.bench.steps import mlp
from egalitarian.lab.config import SpecError
from egalitarian.lab.console.cli import main


def tiny(*, cuda: bool, quick: bool) -> list[train.Workload]:
    model, batch = partial(mlp, 6, 5, 4, 3), partial(torch.rand, 7, 6)
    own = train.Workload(
        "a", "", model, lambda: (batch(), torch.arange(7) % 3), partial(torch.optim.SGD, lr=0.1), 2, 1, processes=3
    )
    return [own, replace(own, name="b", processes=2, muon=False)]


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The processes that were measured, in this one."""
    names: list[str] = []

    def apart(work: Any, report: Callable[[str], None]) -> dict[str, Any]:
        names.append(f"{work.args[0]}/{work.args[1]}")
        return dict(work(report))

    monkeypatch.setattr(train, "workloads", tiny)
    monkeypatch.setattr(train, "apart", apart)
    monkeypatch.setattr(train, "installed", lambda package: False)
    return names


@pytest.fixture
def notes() -> list[str]:
    return []


@pytest.fixture
def setup(tmp_path: Path, notes: list[str]) -> Setup:
    return Setup(CPU, out=tmp_path, date="2026-01-02", note=notes.append)


def parts_file(setup: Setup) -> Path:
    assert setup.out is not None
    (file,) = setup.out.glob("train-parts_*_2026-01-02.json")
    return file


EVERY = ["a/1", "a/2", "a/3", "b/1", "b/2"]


def test_after_a_stop_the_rest_is_measured_and_each_row_is_there_once(
    started: list[str], setup: Setup, notes: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = train.apart

    def stopped(work: Any, report: Callable[[str], None]) -> dict[str, Any]:
        if len(started) == 2:
            raise KeyboardInterrupt
        return whole(work, report)

    monkeypatch.setattr(train, "apart", stopped)
    assert not measure_theme(train.THEME, setup).complete
    assert (started, notes) == (["a/1", "a/2"], [])
    assert list(json.loads(parts_file(setup).read_text())["parts"]) == ["a/1", "a/2"]
    monkeypatch.setattr(train, "apart", whole)
    rows = measure_theme(train.THEME, setup).rows
    assert started == EVERY
    assert notes == [f"2 of 5 processes are already measured in {parts_file(setup)}; going on with the rest."]
    assert len({(row.group, row.method) for row in rows}) == len(rows)
    assert {row.n for row in rows if row.group == "a" and not row.note} == {3}
    again = measure_theme(train.THEME, setup).rows
    assert (started, again) == (EVERY, rows)
    assert notes[1].endswith("delete the file to measure again.")


def test_a_file_of_one_day_collects_workloads(started: list[str], setup: Setup) -> None:
    for only in ("b", "a"):
        rows = measure_theme(train.THEME, replace(setup, only=(only,))).rows
    assert started == ["b/1", "b/2", "a/1", "a/2", "a/3"]
    assert {row.group for row in rows} == {"a", "b"}
    measure_theme(train.THEME, replace(setup, only=("b",), date="2026-01-03"))
    assert started[5:] == ["b/1", "b/2"]


def test_what_other_code_has_measured_is_not_used(
    started: list[str], setup: Setup, notes: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    list(train.rows(setup))
    before = train.basis(setup)
    monkeypatch.setattr(train, "basis", lambda setup: {**before, "source": "other", "peers": {"muon": "1"}})
    list(train.rows(setup))
    assert started == EVERY * 2
    (note,) = notes
    assert note.endswith("5 measured processes are not used, and will be overwritten; changed since: source, peers.")
    parts_file(setup).write_text("mine")
    with pytest.raises(ValueError, match="must have the parts of a benchmark, got another content; delete it, or name"):
        list(train.rows(setup))


def test_a_rival_that_fails_is_a_note_and_the_others_go_on(
    started: list[str], setup: Setup, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Breaks(torch.optim.SGD):
        turns = 0

        def step(self, closure: Any = None) -> None:
            self.turns += 1
            if self.turns == 4:
                raise RuntimeError("broken\nfor many reasons")

    def absent(module: Any, weights: Any) -> Any:
        raise TypeError("another signature")

    broken, absent_title = (f"{package} of no known version" for package in ("colorsys", "calendar"))
    monkeypatch.setattr(steps, "PEERS", {"colorsys": lambda module, weights: Breaks(weights), "calendar": absent})
    monkeypatch.setattr(train, "PEERS", steps.PEERS)
    monkeypatch.setattr(train, "installed", lambda package: True)
    rows = {row.method: row for row in train.rows(replace(setup, only=("a",)))}
    assert (rows[broken].n, rows[broken].note) == (0, "failed: RuntimeError: broken")
    assert (rows[absent_title].n, rows[absent_title].note) == (0, "failed: TypeError: another signature")
    assert rows[broken].numbers["ms"] is rows[broken].numbers["ratio"] is None
    for name in (train.BARE, "EGD exact", "EGD fast", "torch.optim.Muon"):
        assert (rows[name].n, rows[name].note) == (3, "")
        assert rows[name].numbers["ms"] > 0


def test_a_process_that_dies_is_a_row_and_is_measured_again(
    started: list[str], setup: Setup, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = train.apart

    def dies(work: Any, report: Callable[[str], None]) -> dict[str, Any]:
        if work.args[:2] == ("b", 1):
            raise RuntimeError("the process ended with status -9")
        return whole(work, report)

    monkeypatch.setattr(train, "apart", dies)
    rows = list(train.rows(setup))
    assert rows[-1] == BenchRow("b", "a process", note="failed: RuntimeError: the process ended with status -9")
    assert {row.n for row in rows if row.group == "b" and row.method == train.BARE} == {1}
    monkeypatch.setattr(train, "apart", whole)
    assert "a process" not in [row.method for row in train.rows(setup)]
    assert started == ["a/1", "a/2", "a/3", "b/2", "b/1"]


def test_ratios_are_taken_within_a_process_and_medians_over_processes() -> None:
    def part(base: list[float], mine: list[float], memory: dict[str, float]) -> dict[str, Any]:
        ms = {train.BARE: base, "mine": mine}
        return {"rivals": [*ms, "absent"], "ms": ms, "notes": {"absent": "failed: no"}, "memory": memory}

    parts = [
        part([1, 2, 4], [3, 4, 12], {train.BARE: 100, "mine": 150}),
        part([10, 10, 10], [20, 50, 10], {}),
        part([1, 1, 1], [6, 6, 6], {}),
    ]
    rows = {row.method: row for row in train.summarised("w", parts)}
    numbers = rows["mine"].numbers
    assert (numbers["all_ms"], numbers["ms"], numbers["ms_range"]) == ([4, 20, 6], 6, "4-20")
    assert (numbers["all_ratios"], numbers["ratio"], numbers["ratio_range"]) == ([3, 2, 6], 3, "2-6")
    assert (numbers["memory"], numbers["memory_ratio"]) == (150, 1.5)
    bare = rows[train.BARE].numbers
    assert (bare["ms"], bare["ratio"], bare["ratio_range"], bare["memory_ratio"]) == (2, 1, None, 1)
    assert (rows["absent"].n, rows["absent"].numbers["ratio"], rows["absent"].note) == (0, None, "failed: no")
    table = {row["method"]: row for row in train.THEME.table(list(rows.values()))}
    assert (table["mine"]["ratio"], table["absent"]["ratio"]) == (3, None)  # not 6 over 2


def test_an_unknown_workload_is_an_error_with_the_way_out(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    out = tmp_path / "none"
    assert main(["bench", "train", "--only", "mod79", "--device", "cpu", "--out", str(out)]) == 2
    message = "--only must be one of mod97, mlp, resnet-tiny, gpt-tiny, got 'mod79'; did you mean 'mod97'?"
    assert message in capsys.readouterr().err
    with pytest.raises(SpecError, match="got 'gpt-4x1024'; use --device cuda, since it needs a GPU"):
        chosen_workloads(Setup(CPU, only=("gpt-4x1024",)))
    with pytest.raises(SpecError, match="got 'gpt-tiny'; use --device cpu, since it is for a CPU"):
        chosen_workloads(Setup(torch.device("cuda"), only=("gpt-tiny",)))
    with pytest.raises(SpecError, match="got 'zzz'; leave it out for all"):
        chosen_workloads(Setup(CPU, only=("zzz",)))
    assert [each.name for each in chosen_workloads(Setup(CPU, only=("gpt-tiny", "mod97")))] == ["mod97", "gpt-tiny"]
    assert main(["bench", "step", "--only", "mod97", "--out", str(out)]) == 2
    assert "--only must go with the theme train, got mod97; `egalitarian bench train`" in capsys.readouterr().err
    assert main(["bench", "train", "--date", "today", "--out", str(out)]) == 2
    assert "--date must be a day as 2026-11-18, got 'today'; leave it out for today" in capsys.readouterr().err
    assert not out.exists()


@pytest.mark.parametrize(("quick", "steps"), [(True, 4), (False, 200)])
def test_the_legend_has_what_was_measured_and_nothing_else(quick: bool, steps: int) -> None:
    where = {"hardware": "x", "threads": 1, "torch": "2", "python": "3", "when": "2026-11-19"}
    about = measured.Measured(train.THEME, (BenchRow("mlp", train.BARE, 2),), where, quick, True).about
    assert about.endswith(f"\nmlp: MLP 784-200-200-10, batch 200, SGD; {steps} steps of each rival.")
    others = {each.name for cuda in (True, False) for each in train.workloads(cuda=cuda, quick=quick)} - {"mlp"}
    assert not [line for line in about.splitlines() if line.partition(":")[0] in others]
    assert "MiB" not in about
    on_a_gpu = (BenchRow("mlp", train.BARE, 2, {"memory": 3.0}),)
    assert "MiB" in measured.Measured(train.THEME, on_a_gpu, where, quick, True).about


def test_a_gpu_has_the_large_networks() -> None:
    every = {each.name: each for each in train.workloads(cuda=True, quick=False)}
    assert list(every) == ["mod97", "mlp", "resnet18", "gpt-4x1024", "gpt-16x1024", "gpt-64x1024"]
    for name, each in every.items():
        gpt = name.startswith("gpt")
        assert (each.rounds * each.steps, each.processes) == ((30, 3) if gpt else (200, 5))
        assert each.muon == (name != "resnet18")


def test_every_rival_trains_the_same_network_on_the_same_batches(started: list[str]) -> None:
    workload = tiny(cuda=False, quick=False)[0]
    rivals = train.rivals(workload, CPU)
    first = [rivals[name]() for name in (train.BARE, "EGD exact", "torch.optim.Muon")]
    weights = [torch.cat([p.detach().flatten() for p in each.model.parameters()]) for each in first]
    assert all(torch.equal(weights[0], other) for other in weights)
    for trainee in first:
        trainee.step()
    assert len({float(trainee.loss) for trainee in first}) == 1
    muon, rest = first[2].optimizers
    taken = eg.matrices(first[2].model).taken
    assert [id(p) for p in muon.param_groups[0]["params"]] == [id(entry.parameter) for entry in taken]
    assert len(rest.param_groups[0]["params"]) + len(taken) == 6


def test_peak_memory_is_of_one_step_of_a_rival_alone(started: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    alive = torch.zeros(())
    seen: list[int] = []

    class Counted(train.Trainee):
        def step(self) -> None:
            super().step()
            alive.add_(1)

    monkeypatch.setattr(train, "Trainee", Counted)
    for name in ("empty_cache", "synchronize"):
        monkeypatch.setattr(torch.cuda, name, lambda *_: None)
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", lambda device: seen.append(int(alive)))
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device: 2**20 * float(alive))
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda device: 2**20 * float(alive))
    builds = {name: build for name, build in train.rivals(tiny(cuda=True, quick=True)[0], CPU).items() if "EGD" not in name}
    found = train.peaks({**builds, "bad": partial(dict, 1)}, Setup(CPU))  # type: ignore[dict-item, arg-type]
    assert found == {train.BARE: 3, "torch.optim.Muon": 3}  # two steps to warm up, one that counts
    assert seen == [2, 5, 8]


def test_the_networks_are_those_they_are_named_after() -> None:
    count = lambda model: sum(parameter.numel() for parameter in model.parameters())  # noqa: E731
    with torch.device("meta"):
        assert count(train.resnet18()) == 11_173_962
        gpt = train.GPT()
    assert 124e6 < count(gpt) < 125e6
    assert gpt.head.weight is gpt.tokens.weight
    x, y = train.additions(5)
    assert (x.shape, x.sum(1).tolist()) == ((5, 194), [2.0] * 5)
    assert torch.equal(y, (x[:, :97].argmax(1) + x[:, 97:].argmax(1)) % 97)
    small = train.GPT(512, 64, layers=2, width=128, heads=4)
    assert small(train.texts(2, 9, 512)[0]).shape == (18, 512)


def leaves(report: Callable[[str], None], how: str) -> dict[str, Any]:
    report("begun")
    print("a package talks")
    if how == "raises":
        raise ValueError("no\nluck")
    if how == "dies":
        os._exit(3)
    return {"threads": torch.get_num_threads()}


def test_a_process_reports_and_answers(capfd: pytest.CaptureFixture[str]) -> None:
    said: list[str] = []
    assert measured.apart(partial(leaves, how="ends"), said.append) == {"threads": torch.get_num_threads()}
    assert said == ["begun"]
    assert "talks" not in "".join(capfd.readouterr())


@pytest.mark.slow  # starting a process takes seconds
@pytest.mark.parametrize(
    ("how", "text"), [("raises", "ValueError: no"), ("dies", "the process ended with status 3")], ids=["raises", "dies"]
)
def test_a_process_that_fails_or_dies_is_an_error(how: str, text: str) -> None:
    with pytest.raises(RuntimeError, match=text):
        measured.apart(partial(leaves, how=how), lambda doing: None)
