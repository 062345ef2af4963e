"""Old names: refused with the new one, read where an older version stored them, and run ids are as they were."""

from __future__ import annotations

import importlib
import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from report_records import as_earlier, write_run
from small import CPU, groks

import egalitarian as eg
from egalitarian.lab.analysis import gather
from egalitarian.lab.config import DEVICES, Experiment, catalog, renamed
from egalitarian.lab.config.method import TransformSettings
from egalitarian.lab.config.schema import SpecError
from egalitarian.lab.config.spec import Run
from egalitarian.lab.console.cli import main
from egalitarian.lab.runs import Request, sweep, train_requests, unfinished
from egalitarian.lab.runs.outcome import Silent, Stop
from egalitarian.lab.runs.store import Store
from egalitarian.lab.tuning.plan import load_plan

IDS = json.loads((Path(__file__).parents[2] / "data" / "run-ids.json").read_text())
"""Of seed 0: the id of a method without a polar factor, as the last version with the old names computed it. Of others the
id on a CPU, that on a GPU, and the id by version 1, which is as it was, too."""
PLAN = load_plan()


def ids(experiment: Experiment) -> dict[str, str | dict[str, str]]:
    """As `IDS` has them, of an experiment's methods."""
    found: dict[str, str | dict[str, str]] = {}
    for method in experiment.methods:
        by_device = {device: Run(experiment, method, 0, device) for device in DEVICES}
        before = by_device["cpu"].before
        several = {device: run.id for device, run in by_device.items()}
        found[method] = several["cpu"] if before is None else {**several, "version 1": before.id}
    return found


# ---- ids ------------------------------------------------------------------------------------------------------------


def test_every_shipped_method_has_its_id_on_record() -> None:
    assert list(IDS["experiments"]) == [*catalog.names(), *catalog.beyond()]
    assert list(IDS["families"]) == list(PLAN)


@pytest.mark.parametrize("name", IDS["experiments"])
def test_run_ids_are_those_of_the_old_names(name: str) -> None:
    experiment = catalog.load(name)
    assert ids(experiment) == IDS["experiments"][name]


@pytest.mark.parametrize("name", IDS["families"])
def test_run_ids_of_the_tuning_plan_stay_once_points_are_trained(name: str) -> None:
    found = ids(catalog.load(PLAN[name].experiment, added=PLAN[name].added))
    assert {method: found[method] for method in PLAN[name].methods} == IDS["families"][name]


def test_new_names_are_names_that_there_are_and_old_ones_are_not() -> None:
    experiments = {**IDS["experiments"], **IDS["families"]}
    methods = {method for each in experiments.values() for method in each}
    assert set(renamed.METHODS.values()) <= methods
    assert not set(renamed.METHODS) & methods
    assert set(renamed.EXPERIMENTS.values()) <= set(catalog.names())
    assert not set(renamed.EXPERIMENTS) & set(catalog.names())
    assert set(renamed.KINDS.values()) <= set(TransformSettings.kinds)
    assert not set(renamed.KINDS) & set(TransformSettings.kinds)


# ---- what a user types ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ("decay=loss", "decay must be one of 'before', 'after', 'decoupled', got 'loss'; it is now called 'before'"),
        ("decay=coupled", "decay must be one of 'before', 'after', 'decoupled', got 'coupled'; it is now called 'after'"),
        ("methods.sgd-tuned.optim.lr=1", "'methods.sgd-tuned.optim.lr'; it is now called 'sgd-lr5'"),
        (
            'transform=[{name = "neuron-norm", floor = 0.01}]',
            "transform, got 'neuron-norm'; it is now called 'row-norm'",
        ),
    ],
)
def test_an_old_name_of_a_change_is_refused_with_the_new_one(changes: str, said: str) -> None:
    with pytest.raises(SpecError) as caught:
        catalog.load("addition-97", [changes])
    assert str(caught.value).endswith(said)


@pytest.mark.parametrize("old", ["sgd-tuned", "egd-outside", "column-norm"])
@pytest.mark.parametrize("command", ["grok", "show", "run"])
def test_an_old_method_is_refused_with_the_new_one(
    old: str, command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main([command, "addition-97", "-m", old]) == 2
    said = f"method must be one of experiment 'addition-97', got {old!r}; it is now called {renamed.METHODS[old]!r}"
    assert said in capsys.readouterr().err
    assert not any(tmp_path.iterdir())


def test_an_old_method_of_a_family_is_refused_with_the_new_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tune", "mnist", "-m", "column-norm", "--estimate"]) == 2
    assert "got 'column-norm'; it is now called 'row-norm'" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["show", "run", "report", "check"])
def test_an_old_experiment_is_refused_with_the_new_one(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs").mkdir()
    assert main([command, "addition-97-decay-outside"]) == 2
    assert "got 'addition-97-decay-outside'; it is now called 'addition-97-decay-after'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('extends = "addition-97-decay-outside"', "it is now called 'addition-97-decay-after'"),
        ('extends = "addition-97"\nonly = ["egd", "column-norm"]', "it is now called 'row-norm'"),
        ('extends = "addition-97"\n[methods.egd-outside]\nepochs = 9', "it is now called 'egd-after'"),
        ('extends = "addition-97"\n[claims.column-norm]\ntable = "mine"', "it is now called 'row-norm'"),
        ('extends = "addition-97"\n[methods.egd]\ndecay = "loss"', "it is now called 'before'"),
    ],
)
def test_an_old_name_in_a_file_is_refused_with_the_new_one(text: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text(text)
    with pytest.raises(SpecError, match=r" must .*, got .*; ") as caught:
        catalog.load(str(tmp_path / "mine.toml"))
    assert str(caught.value).endswith(said)


def test_a_method_of_ones_own_may_have_an_old_name(tmp_path: Path) -> None:
    own = '[methods.egd-outside]\ntitle = "mine"\nepochs = 9\n'
    (tmp_path / "mine.toml").write_text(f'extends = "addition-97"\nonly = ["egd"]\n{own}')
    assert "egd-outside" in catalog.load(str(tmp_path / "mine.toml")).methods


def test_a_file_of_ones_own_may_not_have_an_old_name_of_the_labs(tmp_path: Path) -> None:
    (tmp_path / "addition-97-decay-outside.toml").write_text('extends = "addition-97"')
    with pytest.raises(SpecError, match="must not have the name of one of the lab's"):
        catalog.load(str(tmp_path / "addition-97-decay-outside.toml"))


@pytest.mark.parametrize(("old", "new"), renamed.MODULES.items())
def test_old_modules_are_gone_and_new_ones_are_there(old: str, new: str) -> None:
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module(old)
    importlib.import_module(new)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("from egalitarian.lab.tasks import Data, Task", "got 'egalitarian.lab.tasks' in"),
        ("from egalitarian.lab.tasks.base import Data", "got 'egalitarian.lab.tasks' in"),
        ("import egalitarian.lab.models", "got 'egalitarian.lab.models' in"),
        ("from egalitarian.lab import models", "got 'egalitarian.lab.models' in"),
        ("from egalitarian.lab.settings import setting", "got 'egalitarian.lab.settings' in"),
        ("from egalitarian.lab.spec import Run", "got 'egalitarian.lab.spec' in"),
    ],
)
def test_an_old_import_of_a_task_file_is_refused_with_the_new_one(line: str, said: str, tmp_path: Path) -> None:
    new = "problems" if "tasks" in line or "models" in line else "config"
    (tmp_path / "task.py").write_text(f"{line}\n")
    (tmp_path / "mine.toml").write_text('extends = "_parity"\n[task]\nfile = "task.py"\n')
    with pytest.raises(SpecError) as caught:
        catalog.load(str(tmp_path / "mine.toml"))
    assert str(caught.value).startswith(f"task.file must import the lab by its present names, {said}")
    assert str(caught.value).endswith(f"; it is now called 'egalitarian.lab.{new}'")


@pytest.mark.parametrize(
    "line", ["import egalitarian.lab.nothing", "from egalitarian.lab import nothing", "import nothing"]
)
def test_an_import_of_what_there_never_was_is_an_error_of_the_file(line: str, tmp_path: Path) -> None:
    (tmp_path / "task.py").write_text(f"{line}\n")
    (tmp_path / "mine.toml").write_text('extends = "_parity"\n[task]\nfile = "task.py"\n')
    with pytest.raises(SpecError, match=r"task\.file must run, got \w*Error: .*nothing.*; correct .*task\.py"):
        catalog.load(str(tmp_path / "mine.toml"))


def test_the_old_class_is_refused_with_the_new_one() -> None:
    with pytest.raises(AttributeError, match="got 'NeuronNorm'; it is now called 'RowNorm'"):
        eg.NeuronNorm  # noqa: B018
    with pytest.raises(AttributeError, match="no attribute 'Nothing'"):
        eg.Nothing  # noqa: B018
    assert "NeuronNorm" not in dir(eg)
    assert "NeuronNorm" not in eg.__all__


# ---- what an older version stored -----------------------------------------------------------------------------------


def aged(store: Store, run: Run, experiment: str, method: str) -> Path:
    """A stored run as an older version left it: folders and spec.json with the old names."""
    old = store.root / experiment / method / f"seed-{run.seed}-{run.id}"
    old.parent.mkdir(parents=True, exist_ok=True)
    as_earlier(store.find(run)).folder.rename(old)
    spec = json.loads((old / "spec.json").read_text())
    settings = {**renamed.as_hashed(spec["settings"]), "title": "an old title"}
    (old / "spec.json").write_text(json.dumps({**spec, "experiment": experiment, "method": method, "settings": settings}))
    return old


@pytest.mark.parametrize(
    ("experiment", "method", "folder"),
    [
        ("addition-97", "row-norm", "addition-97/column-norm"),
        ("addition-97", "egd-after", "addition-97/egd-outside"),
        ("addition-97", "sgd-lr5", "addition-97/sgd-tuned"),
        ("output", "row-norm-after", "output/column-norm-after"),
        ("addition-97-decay-after", "egd", "addition-97-decay-outside/egd"),
        ("addition-97-decay-after", "row-norm", "addition-97-decay-outside/column-norm"),
    ],
)
def test_a_run_in_a_folder_of_the_old_names_is_found_and_read(
    experiment: str, method: str, folder: str, tmp_path: Path
) -> None:
    store = Store(tmp_path)
    for seed in range(2):
        write_run(store, experiment, method, seed, 10)
    run = Run(catalog.load(experiment), method, 0, "cuda")
    old = aged(store, run, *folder.split("/"))
    assert store.find(run).folder == old
    assert store.find(run).spec["settings"]["decay"] == run.method.decay
    assert {stored.folder for stored in store.all(experiment)} == {
        old,
        store.folder(Run(run.experiment, method, 1, "cuda")),
    }
    found = gather(store, [experiment])
    assert [(each.experiment, each.method, each.seed) for each in found.runs] == [(experiment, method, n) for n in (0, 1)]
    assert not found.variants
    assert not found.warnings
    assert gather(store).runs == found.runs


def test_a_run_that_lies_under_both_names_counts_once(tmp_path: Path) -> None:
    store = Store(tmp_path)
    run = Run(catalog.load("addition-97"), "row-norm", 0)
    here = f"addition-97/row-norm/seed-0-{run.id}"
    write_run(store, "addition-97", "row-norm", 0, 10)
    aged(store, run, "addition-97", "column-norm")
    (tmp_path / "addition-97" / "row-norm").rmdir()
    write_run(Store(tmp_path / "other"), "addition-97", "row-norm", 0, 10)
    (tmp_path / "other" / "addition-97" / "row-norm").rename(tmp_path / "addition-97" / "row-norm")
    found = gather(store, ["addition-97"])
    assert [(each.method, each.seed) for each in found.runs] == [("row-norm", 0)]
    assert [each.differs for each in found.variants] == [f"a copy under an old name: {here} counts"]


def test_changed_runs_of_an_older_version_are_told_in_new_spellings(tmp_path: Path) -> None:
    store = Store(tmp_path)
    write_run(store, "addition-97", "egd", 0, 10, changes=["methods.egd.decay=after"])
    aged(store, Run(catalog.load("addition-97", ["methods.egd.decay=after"]), "egd", 0, "cuda"), "addition-97", "egd")
    (variant,) = gather(store, ["addition-97"]).variants
    assert variant.differs == "decay = after (catalogue: before)"


def test_the_commands_read_old_folders(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store = Store(tmp_path / "runs")
    experiment = catalog.load("addition-97-decay-after")
    for seed in range(3):
        write_run(store, "addition-97-decay-after", "egd", seed)
        aged(store, Run(experiment, "egd", seed, "cuda"), "addition-97-decay-outside", "egd")
    runs = ["--runs", str(store.root)]
    assert main(["check", "addition-97-decay-after", *runs]) == 0
    assert main(["report", "addition-97-decay-after", *runs, "--out", str(tmp_path / "out")]) == 0
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert summary["experiments"]["addition-97-decay-after"]["egd"]["n"] == 3
    capsys.readouterr()
    assert main(["list", *runs]) == 0
    listed = capsys.readouterr().out
    assert "decay-outside" not in listed
    (line,) = [line for line in listed.splitlines() if "addition-97-decay-after" in line]
    assert re.search(r"addition-97-decay-after .+ 3  Addition", line)  # the third column: stored runs


def test_a_run_goes_on_in_its_old_folder(tmp_path: Path) -> None:
    experiment, store = groks(), Store(tmp_path)
    experiment = experiment.replace(methods={"row-norm": experiment.method("egd")})
    sweep(experiment, "row-norm", [6], store, CPU, stop=Stop(0.9, 3, 1))
    run = Run(experiment, "row-norm", 6, "cpu")
    old = aged(store, run, experiment.name, "column-norm")
    (old.parent.parent / "row-norm").rmdir()
    request = Request("", "row-norm", (6,), "cpu", 1, tmp_path, epochs=6, past=9, preloaded=experiment)
    ((progress,),) = train_requests([request], Silent())
    assert progress.next_epoch == 6
    assert [path.name for path in old.parent.parent.iterdir()] == ["column-norm"]
    assert not unfinished([request])


@pytest.mark.parametrize("spec", [None, [], {"settings": None}, {"settings": {"transform": [1, {"name": 2}], "decay": 3}}])
def test_a_spec_that_the_lab_did_not_write_is_left_alone(spec: Any) -> None:
    assert renamed.current_spec(spec) == spec


# ---- states of the library ------------------------------------------------------------------------------------------


def test_a_state_that_was_saved_with_the_old_class_is_loaded() -> None:
    model = torch.nn.Linear(3, 2)
    optimizer = eg.EGD(model.parameters(), lr=0.1, transform=eg.RowNorm(0.5))
    state = optimizer.state_dict()
    assert state["param_groups"][0]["egd_transform"] == "(RowNorm(floor=0.5),)"
    state["param_groups"][0]["egd_transform"] = "(NeuronNorm(floor=0.5),)"
    optimizer.load_state_dict(state)
    assert optimizer.param_groups[0]["egd_transform"] == "(RowNorm(floor=0.5),)"
    attachment = eg.attach(torch.optim.SGD(model.parameters(), lr=0.1), model, [eg.RowNorm(), eg.GrokfastEMA()])
    saved = attachment.state_dict()
    attachment.load_state_dict({**saved, "transform": saved["transform"].replace("RowNorm", "NeuronNorm")})
    with pytest.raises(ValueError, match="same transform"):
        attachment.load_state_dict({**saved, "transform": saved["transform"].replace("RowNorm", "MyNeuronNorm")})
