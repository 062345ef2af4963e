"""Tasks of images: what the files have, scaled; eras of labels; and whole runs on small files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from pictures import TEST, TRAIN, pictures
from small import CPU, DOUBLE, distance, run, small, states

from egalitarian.lab.config import catalog
from egalitarian.lab.config.schema import SpecError
from egalitarian.lab.problems import tasks as image_tasks
from egalitarian.lab.problems.tasks import CIFAR10, MNIST, ShuffledCIFAR10
from egalitarian.lab.runs.outcome import Stop
from egalitarian.lab.training.ensemble import Ensemble

SHUFFLED: dict[str, Any] = {"train_size": 24, "test_size": 10, "shuffles": 3, "epochs": 20}
ROUNDING = 1e-9  # float64, through a few steps of optimizers that divide by small numbers


# what is read


@pytest.mark.usefixtures("few_pictures")
def test_mnist_is_the_first_images_flat_from_0_to_1() -> None:
    data = MNIST(train_size=50).build(0)
    for split, part, whole, count in ((data.train, "train", TRAIN, 50), (data.test, "t10k", TEST, TEST)):
        pixels, classes = pictures(part, whole, 28, 28)
        assert torch.equal(split.inputs, pixels[:count].flatten(1) / 255)
        assert torch.equal(split.labels, classes[:count].long())
        assert split.inputs.shape == (count, MNIST(train_size=50).features)


@pytest.mark.usefixtures("few_pictures")
def test_cifar_is_the_first_images_in_colour_from_minus_1_to_1() -> None:
    data = CIFAR10(train_size=50).build(0)
    for split, part, whole, count in ((data.train, "data_batch_1", TRAIN, 50), (data.test, "test_batch", TEST, TEST)):
        pixels, classes = pictures(part, whole, 3, 32, 32)
        assert torch.equal(split.inputs, pixels[:count] / 127.5 - 1)
        assert torch.equal(split.labels, classes[:count].long())
        assert split.inputs.shape == (count, *CIFAR10.image)
        assert float(split.inputs.min()) >= -1
        assert float(split.inputs.max()) <= 1


@pytest.mark.usefixtures("few_pictures")
def test_shuffled_cifar_is_tested_on_its_first_training_images_with_their_true_labels() -> None:
    data = ShuffledCIFAR10(**SHUFFLED).build(0)
    assert torch.equal(data.test.inputs, data.train.inputs[:10])
    assert torch.equal(data.test.labels, data.train.labels[:10])


@pytest.mark.usefixtures("few_pictures")
def test_files_are_read_once_for_all_seeds(monkeypatch: pytest.MonkeyPatch) -> None:
    read = []
    genuine = image_tasks.mnist
    monkeypatch.setattr(image_tasks, "mnist", lambda folder: read.append(folder) or genuine(folder))
    first, *others = [MNIST(train_size=9).build(seed) for seed in range(8)]
    assert len(read) == 1
    assert all(other.train.inputs is first.train.inputs for other in others)


def test_tasks_need_no_files_until_they_are_built(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EGALITARIAN_DATA", str(tmp_path / "nowhere"))
    for name in ("mnist", "cifar-shuffle-3"):
        task = catalog.load(name).task
        with pytest.raises(SpecError, match=r"must exist for .*, got no such file; `egalitarian data --fetch"):
            task.build(0)


@pytest.mark.usefixtures("few_pictures")
def test_more_images_than_there_are_is_an_error() -> None:
    with pytest.raises(SpecError, match="train_size must be at most the 60 training images, got 61; lower it"):
        MNIST(train_size=61).build(0)
    with pytest.raises(SpecError, match="train_size must be >= 1 and <= 60000, got 60001"):
        MNIST(train_size=60_001)


def test_shuffles_that_cannot_be_are_errors() -> None:
    with pytest.raises(SpecError, match="test_size must be at most train_size = 24, got 25; they are the same images"):
        ShuffledCIFAR10(**{**SHUFFLED, "test_size": 25})
    with pytest.raises(SpecError, match="shuffles must be fewer than epochs = 20, got 20; labels change between epochs"):
        ShuffledCIFAR10(**{**SHUFFLED, "shuffles": 20})


# eras


@pytest.mark.parametrize(
    ("shuffles", "at"), [(1, [50]), (3, [25, 50, 75]), (4, [20, 40, 60, 80]), (9, list(range(10, 100, 10))), (0, [])]
)
def test_labels_change_at_equally_spaced_epochs(shuffles: int, at: list[int]) -> None:
    task = ShuffledCIFAR10(train_size=10, test_size=1, shuffles=shuffles, epochs=100)
    eras = [task.era(epoch) for epoch in range(150)]
    assert [epoch for epoch in range(1, 150) if eras[epoch] != eras[epoch - 1]] == at
    assert eras[0] == 0
    assert eras[-1] == shuffles


def test_an_era_deals_the_labels_out_anew_by_seed() -> None:
    task, labels = ShuffledCIFAR10(**{**SHUFFLED, "train_size": 1000}), torch.arange(1000) % 10
    assert torch.equal(task.relabelled(labels, 0, 0), labels)
    dealt = {(seed, era): task.relabelled(labels, seed, era) for seed in range(3) for era in (1, 2, 3)}
    assert len({tuple(each.tolist()) for each in dealt.values()}) == 9
    for each in dealt.values():
        assert torch.equal(each.sort().values, labels.sort().values)
        assert abs(float((each == labels).float().mean()) - 0.1) < 0.05  # five standard errors: nothing is left of them
    assert torch.equal(task.relabelled(labels, 2, 3), dealt[2, 3])


@pytest.mark.usefixtures("few_pictures")
def test_a_stack_has_every_seeds_labels_of_the_era_in_any_company() -> None:
    experiment = small("cifar-shuffle-3")
    together, alone = Ensemble(experiment, [0, 1, 5], CPU), Ensemble(experiment, [5], CPU)
    true = together.train.labels.clone()
    changed = []
    for epoch in range(20):
        before = together.train.labels.clone()
        for stack in (together, alone):
            stack.begin(epoch)
        if not torch.equal(before, together.train.labels):
            changed.append(epoch)
        assert torch.equal(together.train.labels[2], alone.train.labels[0])
        assert torch.equal(together.train.labels.sort(1).values, true.sort(1).values)
        assert torch.equal(together.test.labels, true[:, :10])
    assert changed == [5, 10, 15]
    late = Ensemble(experiment, [5], CPU)
    late.begin(17)  # a run that goes on from there
    assert torch.equal(late.train.labels, alone.train.labels)


# whole runs


@pytest.mark.usefixtures("few_pictures")
@pytest.mark.parametrize(
    ("name", "method"),
    [
        *(("mnist", "egd"), ("mnist", "egd-rsvd-16"), ("transformer", "egd"), ("transformer", "grokfast-ema")),
        *(("cifar-shuffle-9", "adam-egd"), ("cifar-shuffle-9", "radam")),
    ],
)
def test_a_seed_in_company_is_the_seed_alone(name: str, method: str) -> None:
    experiment = small(name, DOUBLE)
    company, alone = states(experiment, method, [4, 0, 2], 3), states(experiment, method, [2], 3)
    assert max(distance(one, other) for one, other in zip(alone[0], company[2], strict=True)) < ROUNDING
    assert distance(company[0][-1], company[1][-1]) > 1e-3


@pytest.mark.usefixtures("few_pictures")
@pytest.mark.parametrize(
    ("name", "method"),
    [("mnist", "egd"), ("mnist", "adamw-decay"), ("transformer", "egd"), ("cifar-shuffle-4", "adam-egd")],
)
def test_a_small_run_goes_through_the_whole_loop(tmp_path: Path, name: str, method: str) -> None:
    experiment = small(name)
    cut = run(tmp_path / "cut", experiment, method, [0, 1], Stop(1.0, 3, 5))
    assert [progress.next_epoch for progress in cut] == [3, 3]
    on = run(tmp_path / "cut", experiment, method, [0, 1], Stop(1.0, 8, 5))
    whole = run(tmp_path / "whole", experiment, method, [0, 1], Stop(1.0, 8, 5))
    assert [progress.curve for progress in on] == [progress.curve for progress in whole]
    assert [progress.last for progress in on] == [progress.last for progress in whole]


@pytest.mark.usefixtures("few_pictures")
def test_bright_rows_are_learnt(tmp_path: Path) -> None:
    experiment = small("mnist", "model.scale=1", "optim.lr=0.01", "optim.weight_decay=0")
    (progress,) = run(tmp_path / "runs", experiment, "egd", [0], Stop(1.0, 30, 5))
    assert progress.last is not None
    assert progress.last["train_accuracy"] > 0.9
    assert progress.last["test_accuracy"] > 0.5
