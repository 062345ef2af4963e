"""`egalitarian bench`: it runs, its files are complete, its errors and ratios are right. No speed is asserted."""

from __future__ import annotations

import json
import re
from itertools import islice
from pathlib import Path

import pytest
import torch
from small import CPU, groks, parameters, same, small, together

from egalitarian.lab import bench
from egalitarian.lab.bench import (
    STEPS,
    THEMES,
    BenchRow,
    Setup,
    Theme,
    chosen,
    experiments,
    kernels,
    measure_theme,
    steps,
    theme,
)
from egalitarian.lab.bench.theme import three_digits
from egalitarian.lab.config import PolarSettings, Run, catalog
from egalitarian.lab.config.schema import SpecError
from egalitarian.lab.console.cli import main
from egalitarian.lab.runs import Stop, Store, sweep
from egalitarian.lab.training import AccuracyMeter, Eager, Ensemble, Stepper, train

QUICK = Setup(CPU, quick=True)


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What one quick run of everything leaves behind; `train` in this process, of one workload."""
    out = tmp_path_factory.mktemp("bench")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bench.train, "apart", lambda work, report: work(report))
        first = bench.train.workloads(cuda=False, quick=True)[:1]
        patch.setattr(bench.train, "workloads", lambda **_: first)
        assert main(["bench", *THEMES, "--quick", "--device", "cpu", "--out", str(out / "made")]) == 0
    return out / "made"


def numbers(written: Path, theme: str) -> dict:
    (file,) = written.glob(f"{theme}_*.json")
    return json.loads(file.read_text())


@pytest.mark.parametrize("theme", THEMES)
def test_every_theme_leaves_a_table_numbers_and_a_picture(written: Path, theme: str) -> None:
    table, picture = (next(written.glob(f"{theme}_*.{ending}")) for ending in ("md", "png"))
    whole = numbers(written, theme)
    where = whole["environment"]
    assert re.fullmatch(rf"{theme}_[a-z0-9-]+_\d{{4}}-\d\d-\d\d_quick", table.stem)
    assert picture.stat().st_size > 5000
    text = table.read_text()
    for part in (where["hardware"], f"torch {torch.__version__}", "1 thread,", where["when"][:10], "--quick", picture.name):
        assert part in text
    assert (where["threads"], whole["quick"], whole["complete"]) == (1, True, True)
    assert text.count("\n| ") == len(whole["rows"]) + 1
    assert all(row["n"] >= 1 for row in whole["rows"] if row["note"] != "not installed")
    assert not [row["note"] for row in whole["rows"] if "failed" in row["note"]]


@pytest.mark.parametrize(("theme", "key"), [("kernels", "ms"), ("step", "ms"), ("experiment", "seconds")])
def test_ratios_are_those_of_the_numbers_in_the_file(written: Path, theme: str, key: str) -> None:
    whole = numbers(written, theme)
    timed = [row for row in whole["rows"] if row.get(key) is not None]
    assert timed
    for row in timed:
        (base,) = (each for each in timed if (each["group"], each["method"]) == (row["group"], whole["baseline"]))
        over = base[key] / row[key] if whole["ratio"] == "baseline over method" else row[key] / base[key]
        assert row["ratio"] == pytest.approx(over, rel=1e-12)


def test_a_ratio_in_a_graph_is_to_the_baseline_in_one_where_there_is_one() -> None:
    def table(theme: Theme, graph_ms: float | None) -> dict:
        base = BenchRow("g", theme.baseline, 3, {"ms": 8.0, "graph_ms": graph_ms})
        return theme.table(
            [base, BenchRow("g", "mine", 3, {"ms": 4.0, "graph_ms": 1.0}), BenchRow("h", "mine", 3, {"ms": 4.0})]
        )[1]

    assert (table(kernels.THEME, None)["ratio"], table(kernels.THEME, None)["graph_ratio"]) == (2.0, 8.0)
    assert (table(steps.THEME, 2.0)["ratio"], table(steps.THEME, 2.0)["graph_ratio"]) == (0.5, 0.5)
    assert steps.THEME.table([BenchRow("h", "mine", 3, {"ms": 4.0})])[0]["ratio"] is None


def test_the_kernels_theme_has_every_method_with_its_error(written: Path) -> None:
    rows = {row["method"]: row for row in numbers(written, "kernels")["rows"] if row["group"] == "24 x 64"}
    methods = {
        "svd, exact",
        "eigh, exact",
        "eigh, fast",
        "polynomial, exact",
        "polynomial, fast",
        "rational, fast",
        "row norm",
        "Muon's iteration",
    }
    assert methods | {kernels.BASELINE, "randomized, rank 12"} == {name for name in rows if not name.endswith(", coarse")}
    for method in ("svd, exact", "eigh, exact", "polynomial, exact"):
        assert rows[method]["error_1e3"] < 1e-6
        assert rows[method]["error_1e4"] < 1e-6
    assert 1e-7 < rows[kernels.BASELINE]["error_1e3"] < rows[kernels.BASELINE]["error_1e4"] < 1e-2
    assert 0.1 < rows["Muon's iteration"]["error_1e3"] < 1
    defaults = {method for method, row in rows.items() if row["note"] == "the default"}
    assert {method for method in defaults if not method.endswith(", coarse")} == {"eigh, exact", "eigh, fast"}


def test_an_error_is_the_distance_over_the_root_of_the_rank() -> None:
    exact = torch.eye(4, 9, dtype=torch.float64)
    assert kernels.distance(torch.zeros(4, 9), exact) == pytest.approx(1)
    assert kernels.distance(exact.float(), exact) == 0
    assert kernels.distance(0.5 * exact.mT, exact.mT) == pytest.approx(0.5)
    assert kernels.distance(torch.stack([exact, 0.25 * exact]), exact.expand(2, 4, 9)) == pytest.approx(0.75)  # the worst


@pytest.mark.parametrize("shape", [(6, 9), (9, 6), (3, 5, 5)])
def test_the_matrices_have_their_condition_number(shape: tuple[int, ...]) -> None:
    G = kernels.matrix(shape, 1e3, CPU)
    S = torch.linalg.svdvals(G.double())
    assert G.shape == shape
    assert G.dtype == torch.float32
    torch.testing.assert_close(S[..., 0] / S[..., -1], torch.full(shape[:-2], 1e3, dtype=torch.float64), rtol=1e-3, atol=0)
    P = kernels.reference(G)
    torch.testing.assert_close(torch.linalg.svdvals(P), torch.ones_like(S))
    assert kernels.distance(kernels.authors(G), P) < 1e-3


def test_the_polynomial_is_left_out_where_it_takes_minutes() -> None:
    assert "polynomial, exact" in kernels.kernels((194, 512), cuda=False)
    assert "polynomial, exact" not in kernels.kernels((1024, 1024), cuda=False)
    assert "polynomial, exact" in kernels.kernels((1024, 1024), cuda=True)
    assert "rational, fast" not in kernels.kernels((194, 512), cuda=True)
    assert [name for name in kernels.kernels((100, 100), cuda=True) if "rank" in name] == ["randomized, rank 64"]


def test_a_candidate_that_fails_is_a_note_and_the_others_go_on() -> None:
    def fails() -> None:
        raise RuntimeError("out of luck\nand a long story")

    prepared: list[int] = []
    candidates = [theme.Candidate("bad", fails), theme.Candidate("good", lambda: None, lambda: prepared.append(1))]
    timings = theme.measure(candidates, QUICK, "group")
    assert timings["bad"] == theme.Timing(None, 0, note="failed: RuntimeError: out of luck")
    assert timings["good"].ms is not None
    assert (timings["good"].n, len(prepared)) == (3, 5)


def test_the_steps_are_of_the_papers_networks_and_of_a_gpt(written: Path) -> None:
    rows = numbers(written, "step")["rows"]
    groups = list(dict.fromkeys(row["group"] for row in rows))
    assert groups[:4] == ["addition-97, 1 seed", "addition-97, 2 seeds", "parity-3, 1 seed", "parity-3, 2 seeds"]
    listed = {row["method"].split()[0]: row for row in rows if row["group"] == groups[-1]}
    assert set(steps.PEERS) <= set(listed)
    for package in steps.PEERS:
        assert steps.installed(package) or listed[package]["note"] == "not installed"
    methods = dict(steps.methods(catalog.load("addition-97")))
    assert "randomized, rank 128" in methods
    assert "randomized, rank 40" in dict(steps.methods(catalog.load("parity-3")))
    assert methods["EGD fast"].transform == (PolarSettings(precision="fast"),)


def test_a_gpt_has_the_matrices_it_has() -> None:
    weights = steps.gpt_matrices(2, 8, CPU)
    assert sum(weight.numel() for weight in weights.values()) == 2 * 12 * 8 * 8  # 12 layers of 768: 85 of the 124 million
    assert all(weight.grad is not None and weight.grad.shape == weight.shape for weight in weights.values())


def test_every_turn_of_a_gpt_sees_the_same_gradients() -> None:
    _, candidates = steps.gpt_candidates(QUICK, "bare")
    plan = next(candidate for candidate in candidates if candidate.name == "equalize_ alone, exact").run.args[0]
    before = [entry.parameter.grad.clone() for entry in plan.entries]
    for candidate in candidates:
        candidate.run()
        candidate.prepare()
        assert all(torch.equal(entry.parameter.grad, grad) for entry, grad in zip(plan.entries, before, strict=True))


@pytest.mark.parametrize("package", steps.PEERS)
def test_a_peer_that_cannot_be_built_is_a_note(package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(steps, "installed", lambda name: name == package)
    rows = {row.method.split()[0]: row for row in steps.timed(steps.gpt_candidates(QUICK, "bare")[1], QUICK, "gpt")}
    assert rows[package].numbers["ms"] is not None or rows[package].note.startswith("failed: ")
    assert rows["torch.optim.Muon"].numbers["ms"] is not None


@pytest.mark.parametrize("method", ["egd", "sgd"])
def test_the_benchmark_trains_as_the_lab_does(tmp_path: Path, method: str) -> None:
    experiment = groks() if method == "egd" else small("addition-97", "measure.threshold=0.05")
    trained = experiments.train_until_passed(experiment, experiment.method(method), 3, Eager, 40, QUICK, "")
    ends = [outcome.crossed for outcome in trained.outcomes]
    assert trained.epochs == (40 if None in ends else max(epoch for epoch in ends if epoch is not None) + 1)
    stop = Stop.of(experiment, method, epochs=40)
    stored = sweep(experiment, method, range(3), Store(tmp_path), CPU, stop=stop)
    assert ends == [run.crossed for run in stored]
    assert all(half.crossed is None or half.crossed <= trained.epochs for half in trained.halves)


def test_the_benchmark_measures_test_accuracy_alone() -> None:
    ensemble, stepper = together(groks(), "egd", (6, 7))
    whole = islice(train(*together(groks(), "egd", (6, 7))), 8)
    for full, epoch in zip(whole, train(ensemble, stepper, meter=AccuracyMeter(ensemble)), strict=False):
        assert epoch.measuring_seconds == 0 < epoch.training_seconds
        for own, other in zip(epoch.records, full.records, strict=True):
            assert own == [{"epoch": epoch.number, "test_accuracy": other[0]["test_accuracy"]}]


def test_a_validation_split_decides_about_the_switch_off_in_the_benchmark_too() -> None:
    experiment = groks("training.validation=0.5")
    ensemble, stepper = together(experiment, "egd", (6, 7, 0))
    list(islice(train(ensemble, stepper, meter=AccuracyMeter(ensemble)), 12))
    other, twin = together(experiment, "egd", (6, 7, 0))
    list(islice(train(other, twin), 12))
    assert stepper.active == twin.active
    assert all(same(one, two) for one, two in zip(parameters(ensemble), parameters(other), strict=True))


def test_the_benchmark_ends_with_its_budget() -> None:
    experiment = small()
    trained = experiments.train_until_passed(experiment, experiment.method("sgd"), 2, Eager, 2, QUICK, "")
    assert [(outcome.crossed, outcome.epochs) for outcome in trained.outcomes] == [(None, 2), (None, 2)]


def test_another_step_can_be_plugged_in(monkeypatch: pytest.MonkeyPatch) -> None:
    made = []

    def counted(ensemble: Ensemble, stepper: Stepper) -> Eager:
        made.append(len(ensemble.seeds))
        return Eager(ensemble, stepper)

    monkeypatch.setitem(STEPS, "captured", counted)
    rows = list(experiments.rows(Setup(CPU, quick=True, seeds=(3,))))
    assert [row.method for row in rows][:2] == ["EGD exact", "EGD exact, captured"]
    assert rows[0].numbers["crossed"] == rows[1].numbers["crossed"]
    assert set(made) == {3}
    assert {row.group for row in rows} == {"3 seeds"}


def test_seeds_that_did_not_pass_are_noted(written: Path) -> None:
    for row in numbers(written, "experiment")["rows"]:
        assert row["passed"] == sum(epoch is not None for epoch in row["crossed"])
        assert len(row["crossed"]) == row["seeds"]
        assert (row["note"] == "not all passed") == (row["passed"] < row["seeds"])
        assert row["ms_per_epoch"] == pytest.approx(1e3 * row["seconds"] / row["epochs"])


def test_ctrl_c_keeps_what_is_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(kernels, "QUICK", ((4, 6), (5, 7)))

    def report(doing: str) -> None:
        if doing.startswith("5 x 7"):
            raise KeyboardInterrupt

    half = measure_theme(kernels.THEME, Setup(CPU, quick=True, report=report))
    assert not half.complete
    assert {row.group for row in half.rows} == {"4 x 6"}
    assert half.stem.endswith("_quick_partial")
    assert "stopped" in half.heading
    monkeypatch.setattr(kernels, "matrix", interrupted)
    assert main(["bench", "kernels", "step", "--quick", "--device", "cpu", "--out", str(tmp_path)]) == 130
    assert "Stopped. What was measured is written." in capsys.readouterr().out
    assert sorted(path.suffix for path in tmp_path.iterdir()) == [".json", ".md"]  # nothing to draw, and no other theme


def test_a_wrong_theme_is_a_message(capsys, tmp_path: Path) -> None:
    assert main(["bench", "kernel", "--quick", "--out", str(tmp_path / "none")]) == 2
    message = "theme must be one of kernels, step, train, experiment, clock, got 'kernel'; did you mean 'kernels'?"
    assert message in capsys.readouterr().err
    assert not (tmp_path / "none").exists()
    with pytest.raises(SpecError, match="got 'zzz'; leave it out for the usual ones"):
        chosen(["zzz"])
    assert [theme.name for theme in chosen(["step", "kernels", "step"])] == ["step", "kernels"]
    assert [theme.name for theme in chosen([])] == ["kernels", "step", "experiment"]


@pytest.mark.parametrize("seeds", ["0", "-1", "1-8", "x", "1.5"])
def test_wrong_seeds_are_a_message(capsys, seeds: str) -> None:
    assert main(["bench", *THEMES, "--quick", f"--seeds={seeds}"]) == 2
    assert "--seeds must be whole numbers from 1 to 9999" in capsys.readouterr().err


def test_a_file_in_the_way_is_a_message(capsys, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    assert main(["bench", "kernels", "--quick", "--device", "cpu", "--out", str(tmp_path / "file")]) == 2
    assert "file" in capsys.readouterr().err


def test_a_precision_asked_for_is_another_run() -> None:
    own, exact, quick = (
        Run(catalog.load("addition-97", [f'transform=[{{name="polar",precision="{mode}"}}]'], ["egd"]), "egd", 0, "cuda")
        for mode in ("auto", "exact", "fast")
    )
    assert own.id == Run(catalog.load("addition-97"), "egd", 0, "cuda").id == quick.id
    assert exact.id != own.id
    assert quick.method.transform[0].precision == "fast"


@pytest.mark.parametrize(
    ("value", "text"), [(None, ""), (1234.5, "1234"), (12.345, "12.3"), (0.0123, "0.0123"), (1e-5, "1.0e-05")]
)
def test_three_digits(value: float | None, text: str) -> None:
    assert three_digits(value) == text
