"""Experiments by name and by file: what is found, what is refused, and tasks of users."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from refused import message, write

from egalitarian.lab import config
from egalitarian.lab.config import catalog
from egalitarian.lab.config.schema import SpecError


def test_two_files_of_one_name_are_refused(tmp_path: Path) -> None:
    for folder in ("one", "other"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "own.toml").write_text('extends = "addition-97"\n')
    one, other = (str(tmp_path / folder / "own.toml") for folder in ("one", "other"))
    assert list(catalog.load_each([one, one, "addition-97"])) == [one, "addition-97"]
    with pytest.raises(SpecError, match=r"experiments must differ in name, got .*one.* and .*other.*, both 'own'; rename"):
        catalog.load_each([one, "addition-97", other])


def test_an_unknown_experiment_or_method_is_an_error_with_the_nearest() -> None:
    assert "did you mean 'addition-97'?" in message("adition-97")
    assert "got '_modular'" in message("_modular")
    assert "must be a name or an existing file, got nowhere.toml" in message("nowhere.toml")
    with pytest.raises(
        SpecError, match=r"method must be one of experiment 'addition-97', got 'egdd'; did you mean 'egd'\?"
    ):
        catalog.load("addition-97").method("egdd")


def test_a_broken_file_is_an_error_that_names_it(tmp_path: Path) -> None:
    assert "broken.toml must be TOML" in message(write(tmp_path / "broken.toml", "[task\n"))
    deep = f'extends = "addition-97"\nx = {"[" * 5000}'
    assert "deep.toml must be TOML" in message(write(tmp_path / "deep.toml", deep))
    assert "nothing.toml" in message(write(tmp_path / "one.toml", 'extends = "nothing.toml"\n'))
    assert "did you mean 'addition-97'?" in message(write(tmp_path / "two.toml", 'extends = "additon-97"\n'))
    assert "optim must be a table, got 3" in message(write(tmp_path / "three.toml", 'extends = "addition-97"\noptim = 3\n'))
    text = 'extends = "addition-97"\n[methods.egd]\noptim = 3\n'
    assert "methods.egd.optim must be a table, got 3" in message(write(tmp_path / "four.toml", text))


def test_a_chain_of_files_has_an_end(tmp_path: Path) -> None:
    for number in range(200):
        write(tmp_path / f"{number}.toml", f'extends = "{number + 1}.toml"\n')
    write(tmp_path / "200.toml", 'extends = "addition-97"\n')
    assert "extends must lead through at most 100 files, got more at" in message(str(tmp_path / "0.toml"))
    assert catalog.load(str(tmp_path / "150.toml")).task == catalog.load("addition-97").task


def test_a_task_file_that_is_not_python_is_named(tmp_path: Path) -> None:
    write(tmp_path / "task", "")
    path = write(tmp_path / "mine.toml", 'extends = "_parity"\n[task]\nfile = "task"\n')
    assert f"task.file must end in .py, got {tmp_path / 'task'}; rename it" in message(path)


TASK = '''
from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch

from egalitarian.lab.config import setting
from egalitarian.lab.problems import Data, Split, Task, stream


@dataclass(frozen=True, kw_only=True)
class Copy(Task, kind="copy"):
    """The label is the input."""

    classes: int = setting(least=2)
    order: Literal["up", "down"] = "up"
    looked_up: ClassVar[bool] = True

    @property
    def outputs(self) -> int:
        return self.classes

    @property
    def features(self) -> int:
        return self.classes

    def build(self, seed: int) -> Data:
        points = torch.randint(0, self.classes, (16,), generator=stream(seed, "points"))
        return Data(Split(points[:8, None], points[:8]), Split(points[8:, None], points[8:]))
'''


def test_a_user_brings_a_task_of_their_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(config.TaskSettings, "kinds", dict(config.TaskSettings.kinds))
    (tmp_path / "copying.py").write_text(TASK)
    text = 'extends = "addition-97"\n[task]\nname = "copy"\nfile = "copying.py"\nclasses = 3\n'
    experiment = catalog.load(write(tmp_path / "mine.toml", text), ["training.batch=4", "model.width=4"])
    assert (experiment.task.kind, experiment.task.classes, experiment.task.outputs) == ("copy", 3, 3)
    assert experiment.task.build(0).train.labels.shape == (8,)
    assert "task.order must be one of 'up', 'down'" in message(str(tmp_path / "mine.toml"), ["task.order=side"])
    assert "task.file must be a Python file" in message(str(tmp_path / "mine.toml"), ["task.file=none.py"])


def test_loading_draws_no_random_number() -> None:
    before = torch.get_rng_state()
    catalog.load("parity-3")
    assert torch.equal(torch.get_rng_state(), before)


def test_a_users_file_must_not_have_a_name_of_the_labs(tmp_path: Path) -> None:
    path = tmp_path / "addition-97.toml"
    path.write_text('extends = "addition-79"\n')
    with pytest.raises(SpecError, match="must not have the name of one of the lab's"):
        catalog.load(str(path))


def test_a_task_file_is_beside_the_file_that_names_it(tmp_path: Path) -> None:
    (tmp_path / "below").mkdir()
    (tmp_path / "task.py").write_text("raise RuntimeError('found')\n")
    (tmp_path / "base.toml").write_text('extends = "_parity"\n[task]\nfile = "task.py"\n')
    (tmp_path / "below/mine.toml").write_text('extends = "../base.toml"\n')
    with pytest.raises(SpecError, match=r"task\.file must run, got RuntimeError: found"):
        catalog.load(str(tmp_path / "below/mine.toml"))
