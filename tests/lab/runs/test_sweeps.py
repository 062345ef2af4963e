"""The sweep: whatever happens to it, a run's records are those of an unbroken one; what is stored is not trained again."""

from __future__ import annotations

import json
import os
import random
import signal
import statistics
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from forked import INTERRUPTED, Trainers
from small import CPU, DOUBLE, VARIANTS, files, groks, recorded, run, small

from egalitarian.lab.config import Experiment, Run, SpecError, catalog
from egalitarian.lab.runs import (
    Interrupted,
    Outcome,
    Progress,
    Record,
    Request,
    Silent,
    Stop,
    Store,
    StoreError,
    stored_progress,
    sweep,
    sweeps,
    train_requests,
)
from egalitarian.lab.runs.store import Writer

SEEDS = [6, 0, 1]
"""They pass the threshold at epochs 2, 7 and 14: the batch shrinks twice."""
ENDS = {6: 4, 0: 9, 1: 16}
STOP = Stop(threshold=0.9, epochs=30, past=1)


@pytest.fixture(autouse=True)
def save_always(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sweeps, "SAVE_EVERY", 0.0)


@pytest.fixture(scope="module")
def trainers() -> Iterator[Trainers]:
    with Trainers() as serving:
        yield serving


def train(root: Path, stop: Stop = STOP, seeds: Sequence[int] = SEEDS, **more: Any) -> list[Progress]:
    return run(root, groks(), "egd", seeds, stop, **more)


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """The records of a sweep that nothing happened to."""
    root = tmp_path_factory.mktemp("unbroken")
    done = train(root)
    assert {progress.run.seed: progress.next_epoch for progress in done} == ENDS
    return recorded(root)


def batches(root: Path) -> dict[str, list[int]]:
    """By run, with how many seeds each epoch was trained, the last time that it was."""
    found = {}
    for stored in Store(root).all():
        sizes = {line["epoch"]: line["seeds"] for line in stored.timings}
        found[stored.folder.name.rsplit("-", 1)[0]] = [sizes[epoch] for epoch in sorted(sizes)]
    return found


TOGETHER = {"seed-6": [3] * 4, "seed-0": [3] * 4 + [2] * 5, "seed-1": [3] * 4 + [2] * 5 + [1] * 7}


# what a sweep does


def test_each_seed_goes_on_past_its_own_threshold(tmp_path: Path) -> None:
    done = train(tmp_path)
    assert [progress.run.seed for progress in done] == SEEDS
    assert [progress.crossed for progress in done] == [2, 7, 14]
    assert batches(tmp_path) == TOGETHER
    for progress in done:
        records = [record for record in Store(tmp_path).find(progress.run).records() if "snapshot" not in record]
        assert [record["epoch"] for record in records] == list(range(ENDS[progress.run.seed]))
        passed = [record["epoch"] for record in records if record["test_accuracy"] > 0.9]
        assert passed[0] == progress.crossed
        assert progress.last == records[-1]


def test_a_budget_ends_a_seed_that_does_not_pass(tmp_path: Path) -> None:
    done = train(tmp_path, Stop(0.9, 5, 1))
    assert [(progress.crossed, progress.next_epoch) for progress in done] == [(2, 4), (None, 5), (None, 5)]


def test_budgets_and_thresholds_come_from_the_experiment() -> None:
    experiment = groks("epochs=33", "measure.past=4")
    assert Stop.of(experiment, "egd") == Stop(threshold=0.9, epochs=33, past=4)
    assert Stop.of(experiment, "egd", epochs=2, past=0) == Stop(threshold=0.9, epochs=2, past=0)


def test_what_is_stored_is_not_trained_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = train(tmp_path)
    before = files(tmp_path, leave_out=())

    def refuse(*_: Any, **__: Any) -> Any:
        pytest.fail("trained again")

    monkeypatch.setattr(sweeps, "train", refuse)
    monkeypatch.setattr(sweeps, "Ensemble", refuse)
    monkeypatch.setattr(sweeps, "Ensemble", refuse)
    again = train(tmp_path)
    assert files(tmp_path, leave_out=()) == before  # not even a lock
    assert [(one.crossed, one.next_epoch, one.last) for one in again] == [
        (one.crossed, one.next_epoch, one.last) for one in first
    ]
    assert train(tmp_path, Stop(0.9, 3, 1))[1].next_epoch == 9  # a smaller budget takes nothing back


def test_only_what_is_missing_is_trained(tmp_path: Path) -> None:
    train(tmp_path, seeds=[6])
    before = files(tmp_path)
    train(tmp_path)
    assert before.items() <= files(tmp_path).items()
    assert batches(tmp_path)["seed-1"] == [2] * 9 + [1] * 7


@pytest.mark.parametrize("name", VARIANTS)
def test_three_epochs_and_three_more_are_six(tmp_path: Path, name: str) -> None:
    """A longer budget extends a stored run, bitwise, whatever moves the weights."""
    method, changes = VARIANTS[name]
    experiment = small("addition-97", *changes, methods=(method,))
    run(tmp_path / "two", experiment, method, [0, 1], Stop(0.95, 3, 9))
    run(tmp_path / "two", experiment, method, [0, 1], Stop(0.95, 6, 9))
    run(tmp_path / "one", experiment, method, [0, 1], Stop(0.95, 6, 9))
    assert recorded(tmp_path / "two") == recorded(tmp_path / "one")


@pytest.mark.usefixtures("few_pictures")
@pytest.mark.parametrize("method", ["adam", "radam-egd", "rmsprop"])
def test_a_run_with_dropout_and_shuffles_resumes_bitwise(tmp_path: Path, method: str) -> None:
    """Labels change before epochs 2 and 4, and optimizers start again: it stops just there, and once between."""
    changes = ("task.epochs=6", "task.shuffles=2", "model.channels=[3,4,4,3]", "training.reset=true")
    experiment = small("cifar-castanyer", *changes, methods=(method,))
    for epochs in (2, 3, 6):
        run(tmp_path / "two", experiment, method, [0, 1], Stop(1, epochs, 9))
    run(tmp_path / "one", experiment, method, [0, 1], Stop(1, 6, 9))
    assert recorded(tmp_path / "two") == recorded(tmp_path / "one")


def test_more_epochs_past_the_threshold_extend_a_run(tmp_path: Path) -> None:
    train(tmp_path / "two", seeds=[6])
    train(tmp_path / "two", Stop(0.9, 30, 5), seeds=[6])
    train(tmp_path / "one", Stop(0.9, 30, 5), seeds=[6])
    assert recorded(tmp_path / "two") == recorded(tmp_path / "one")


def test_a_seed_is_the_same_in_any_batch_to_rounding(tmp_path: Path) -> None:
    experiment, stop = groks(DOUBLE), Stop(0.9, 8, 9)
    run(tmp_path / "all", experiment, "egd", SEEDS, stop)
    for seed in SEEDS:
        run(tmp_path / "alone", experiment, "egd", [seed], stop)
        one, other = (
            Store(tmp_path / part).find(Run(experiment, "egd", seed, "cpu")).records() for part in ("all", "alone")
        )
        for record, lone in zip(one, other, strict=True):
            assert [value for value in record.values() if isinstance(value, float)] == pytest.approx(
                [value for value in lone.values() if isinstance(value, float)], rel=1e-6, abs=1e-9
            )


def test_saving_rarely_gives_the_same_records(
    tmp_path: Path, unbroken: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sweeps, "SAVE_EVERY", 1e9)
    train(tmp_path)
    assert recorded(tmp_path) == unbroken


def test_one_checkpoint_is_kept(tmp_path: Path) -> None:
    train(tmp_path)
    kept = sorted(path.name for path in tmp_path.rglob("checkpoint-*"))
    assert kept == ["checkpoint-16.safetensors", "checkpoint-4.safetensors", "checkpoint-9.safetensors"]


def test_a_seed_that_is_named_twice_is_trained_once(tmp_path: Path) -> None:
    done = train(tmp_path, seeds=[6, 6])
    assert [progress.next_epoch for progress in done] == [4, 4]


def test_an_unknown_method_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="method must be one of experiment 'parity-2', got 'edg'"):
        run(tmp_path, groks(), "edg", [0], STOP)
    assert list(tmp_path.iterdir()) == []


def test_a_mistake_in_the_settings_leaves_no_weights_behind(tmp_path: Path) -> None:
    experiment = small("addition-97", "training.batch=1000")
    for _ in range(2):  # the second time as well
        with pytest.raises(SpecError, match=r"training\.batch must be at most the 24 training points"):
            run(tmp_path, experiment, "egd", [0], STOP)
    assert not list(tmp_path.rglob("checkpoint-*"))


# divergence


def diverging() -> Experiment:
    return small("parity-2", "optim.lr=1e12", methods=("sgd",))


def test_a_seed_that_diverges_is_done(tmp_path: Path) -> None:
    (progress,) = run(tmp_path, diverging(), "sgd", [0], Stop(0.95, 50, 1))
    assert progress.diverged
    assert progress.next_epoch < 50
    text = next(tmp_path.rglob("records.jsonl")).read_text()
    assert "null" in text
    for line in text.splitlines():
        json.loads(line, parse_constant=pytest.fail)


@pytest.mark.parametrize("loss", [float("nan"), float("inf"), None])
def test_a_loss_that_is_not_finite_is_the_same_in_memory_and_on_the_disk(loss: float | None) -> None:
    progress = Progress(Run(groks(), "egd", 0, "cpu"), Outcome(0.9))
    progress.take({"epoch": 0, "train_loss": loss, "train_accuracy": 0.1, "test_accuracy": 0.1})
    assert progress.diverged
    assert progress.done(STOP)


@pytest.mark.parametrize("method", ["sgd", "egd", "egd-after", "natural", "muon", "grokfast-ema", "grokfast-ma"])
@pytest.mark.parametrize("lr", ["1e4", "1e12", "1e30"])
def test_no_learning_rate_breaks_the_sweep(tmp_path: Path, method: str, lr: str) -> None:
    experiment = small("addition-97", f"optim.lr={lr}", f"hidden.lr={lr}", methods=(method,))
    done = run(tmp_path, experiment, method, [0, 1], Stop(0.95, 12, 1))
    again = run(tmp_path, experiment, method, [0, 1], Stop(0.95, 12, 1))
    assert [(one.next_epoch, one.diverged) for one in again] == [(one.next_epoch, one.diverged) for one in done]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_stop_at_the_first_message_finds_a_checkpoint(tmp_path: Path, number: signal.Signals) -> None:
    class Hasty(Silent):
        def begins(self, runs: Sequence[Progress], stop: Stop) -> None:
            signal.raise_signal(number)

    with pytest.raises(Interrupted) as stopped:
        train(tmp_path, listener=Hasty())
    assert [one.next_epoch for one in stopped.value.runs] == [1] * len(SEEDS)


# memory


@pytest.mark.parametrize("at", [0, 1, 7])
@pytest.mark.parametrize("room", [1, 2])
def test_out_of_memory_splits_the_seeds_and_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: int, room: int
) -> None:
    """With memory for `room` seeds from epoch `at` on, and records on the disk that no checkpoint has a checksum of."""
    monkeypatch.setattr(sweeps, "SAVE_EVERY", 1e9)
    plain = sweeps.train

    def train_with_little_memory(ensemble: Any, *arguments: Any, **options: Any) -> Iterator[Any]:
        for epoch in plain(ensemble, *arguments, **options):
            if epoch.number >= at and len(ensemble.seeds) > room:
                raise torch.OutOfMemoryError("CUDA out of memory")
            yield epoch

    monkeypatch.setattr(sweeps, "train", train_with_little_memory)
    notes = Notes()
    stop = Stop(threshold=1.0, epochs=12, past=0)
    broken = train(tmp_path / "broken", stop, listener=notes)
    assert [each.next_epoch for each in broken] == [12, 12, 12]
    assert "half as many" in notes.notes[0]
    monkeypatch.setattr(sweeps, "train", plain)
    for one, other in zip(broken, train(tmp_path / "whole", stop), strict=True):
        assert one.curve == pytest.approx(other.curve, abs=1e-9)
        assert len(Store(tmp_path / "broken").find(one.run).timings) == 12


def test_out_of_memory_with_one_seed_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*arguments: Any, **options: Any) -> Iterator[Any]:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(sweeps, "train", never)
    with pytest.raises(SpecError, match=r"one seed must fit .* --device cpu"):
        train(tmp_path, seeds=[0])


def test_a_lost_device_is_an_error_and_a_rerun_resumes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From then on nothing can be read from it, so that nothing more is saved: the last checkpoint counts."""
    monkeypatch.setattr(sweeps, "SAVE_EVERY", 0.0)
    plain, save = sweeps.train, sweeps.Trainer._save

    def lost(*arguments: Any) -> Any:
        raise RuntimeError("CUDA error: the launch timed out and was terminated\nCompile with ...")

    def train_until_it_is_lost(*arguments: Any, **options: Any) -> Iterator[Any]:
        for epoch in plain(*arguments, **options):
            if epoch.number == 5:
                monkeypatch.setattr(sweeps.Trainer, "_save", lost)
                lost()
            yield epoch

    monkeypatch.setattr(sweeps, "train", train_until_it_is_lost)
    stop = Stop(threshold=1.0, epochs=12, past=0)
    with pytest.raises(
        SpecError, match=r"^CUDA device lost: CUDA error: the launch timed out and was terminated; rerun the same command"
    ):
        train(tmp_path / "lost", stop)
    monkeypatch.setattr(sweeps, "train", plain)
    monkeypatch.setattr(sweeps.Trainer, "_save", save)
    epochs: list[int] = []

    class Counts(Silent):
        def epoch(self, runs: Sequence[Progress], records: Sequence[Any]) -> None:
            epochs.append(records[0][0]["epoch"])

    resumed = train(tmp_path / "lost", stop, listener=Counts())
    assert epochs == list(range(5, 12))
    for one, other in zip(resumed, train(tmp_path / "whole", stop), strict=True):
        assert one.curve == other.curve


def test_errors_of_other_kinds_are_not_taken_for_a_lost_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*arguments: Any, **options: Any) -> Iterator[Any]:
        raise RuntimeError("shapes cannot be multiplied")

    monkeypatch.setattr(sweeps, "train", never)
    with pytest.raises(RuntimeError, match="shapes"):
        train(tmp_path, seeds=[0])


# listeners


class Notes(Silent):
    """Keeps all that a listener gets."""

    def __init__(self) -> None:
        self.begun: list[list[int]] = []
        self.epochs: list[tuple[int, int]] = []
        self.ended: list[list[int]] = []
        self.notes: list[str] = []

    def begins(self, runs: Sequence[Progress], stop: Stop) -> None:
        self.begun.append([progress.run.seed for progress in runs])

    def epoch(self, runs: Sequence[Progress], records: Sequence[Sequence[Record]]) -> None:
        assert all(progress.last is own[0] for progress, own in zip(runs, records, strict=True))
        self.epochs.append((records[0][0]["epoch"], len(runs)))

    def ends(self, runs: Sequence[Progress]) -> None:
        self.ended.append([progress.run.seed for progress in runs])

    def note(self, text: str) -> None:
        self.notes.append(text)


def test_listeners_get_every_epoch_and_end(tmp_path: Path) -> None:
    notes = Notes()
    train(tmp_path, listener=notes)
    assert notes.begun == [[6, 0, 1]]
    assert notes.epochs == [(epoch, 3 if epoch < 4 else 2 if epoch < 9 else 1) for epoch in range(16)]
    assert notes.ended == [[6], [0], [1]]


# interrupts


class Signals(Silent):
    """Sends itself a signal at the end of an epoch, once or more."""

    def __init__(self, number: int, epoch: int, times: int = 1) -> None:
        self._number, self._epoch, self._times = number, epoch, times

    def epoch(self, runs: Sequence[Progress], records: Sequence[Sequence[Record]]) -> None:
        if records[0][0]["epoch"] == self._epoch:
            for _ in range(self._times):
                signal.raise_signal(self._number)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("epoch", [0, 2, 3, 8])
def test_an_interrupt_ends_the_sweep_with_everything_saved(
    tmp_path: Path, unbroken: dict[str, bytes], number: int, epoch: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sweeps, "SAVE_EVERY", 1e9)  # only the interrupt can have saved it
    before = signal.getsignal(number)
    with pytest.raises(Interrupted):
        train(tmp_path, listener=Signals(number, epoch))
    assert signal.getsignal(number) is before
    for seed in SEEDS:
        records = [one for one in Store(tmp_path).find(Run(groks(), "egd", seed, "cpu")).records() if "snapshot" not in one]
        assert len(records) == min(epoch + 1, ENDS[seed])
    train(tmp_path)
    assert recorded(tmp_path) == unbroken
    assert batches(tmp_path) == TOGETHER


def test_an_interrupt_at_the_very_end_is_still_heeded(tmp_path: Path) -> None:
    """The caller may have more to do, and was asked to stop."""
    with pytest.raises(Interrupted):
        train(tmp_path, listener=Signals(signal.SIGINT, 15))
    assert [progress.next_epoch for progress in train(tmp_path)] == [4, 9, 16]
    assert batches(tmp_path) == TOGETHER


def test_an_interrupt_begins_no_other_batch(tmp_path: Path) -> None:
    train(tmp_path, Stop(0.9, 2, 9), seeds=[6])
    notes = Notes()

    class Both(Signals):
        def begins(self, runs: Sequence[Progress], stop: Stop) -> None:
            notes.begins(runs, stop)

    with pytest.raises(Interrupted):  # the first batch is done with the very epoch that is interrupted
        train(tmp_path, Stop(0.9, 3, 9), seeds=[6, 0], listener=Both(signal.SIGTERM, 2))
    assert notes.begun == [[6]]


def test_a_second_interrupt_ends_it_at_once_and_harms_nothing(tmp_path: Path, unbroken: dict[str, bytes]) -> None:
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        train(tmp_path, listener=Signals(signal.SIGINT, 6, times=2))
    assert signal.getsignal(signal.SIGINT) is before
    train(tmp_path)
    assert recorded(tmp_path) == unbroken


def test_an_error_of_a_listener_harms_nothing(tmp_path: Path, unbroken: dict[str, bytes]) -> None:
    class Broken(Silent):
        def epoch(self, runs: Sequence[Progress], records: Sequence[Sequence[Record]]) -> None:
            if records[0][0]["epoch"] == 5:
                raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        train(tmp_path, listener=Broken())
    train(tmp_path)
    assert recorded(tmp_path) == unbroken


# two processes


def wait_for(path: Path, seconds: float = 60.0) -> None:
    until = time.monotonic() + seconds
    while not path.exists():
        assert time.monotonic() < until, f"{path} does not come"
        time.sleep(0.002)


def test_a_second_process_is_refused_by_name_and_harms_nothing(
    tmp_path: Path, unbroken: dict[str, bytes], trainers: Trainers
) -> None:
    tmp_path.joinpath("runs").mkdir()
    first = trainers.start(runs=str(tmp_path / "runs"), seeds=SEEDS, epochs=30, waits_at=5)
    wait_for(tmp_path / "runs" / "waiting")
    for seeds in (SEEDS, [1], [0, 7]):
        with pytest.raises(
            StoreError, match=rf"seed \d must be trained by one process at a time, got a second one while process {first} "
        ):
            train(tmp_path / "runs", seeds=seeds)
    done = train(tmp_path / "runs", seeds=[6])  # what is done may be read
    assert done[0].next_epoch == 4
    (tmp_path / "runs" / "go").touch()
    assert trainers.wait(first) == 0
    found = recorded(tmp_path / "runs")
    assert {name: found[name] for name in unbroken} == unbroken


def test_a_process_that_was_terminated_has_saved_everything(
    tmp_path: Path, unbroken: dict[str, bytes], trainers: Trainers
) -> None:
    (tmp_path / "runs").mkdir()
    process = trainers.start(runs=str(tmp_path / "runs"), seeds=SEEDS, epochs=30, waits_at=5, save_every=1e9)
    wait_for(tmp_path / "runs" / "waiting")
    os.kill(process, signal.SIGTERM)
    (tmp_path / "runs" / "go").touch()
    assert trainers.wait(process) == INTERRUPTED
    records = Store(tmp_path / "runs").find(Run(groks(), "egd", 1, "cpu")).records()
    assert [record["epoch"] for record in records if "snapshot" not in record] == list(range(6))
    train(tmp_path / "runs")
    assert recorded(tmp_path / "runs") == unbroken


def test_what_another_process_did_meanwhile_is_seen(
    tmp_path: Path, unbroken: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the first look and the lock, another process trained everything."""
    look_up, looks = sweeps._look_up, []

    def late(*arguments: Any) -> Any:
        known = look_up(*arguments)
        looks.append(known)
        if len(looks) == 1:
            monkeypatch.setattr(sweeps, "_look_up", look_up)
            train(tmp_path)
        return known

    monkeypatch.setattr(sweeps, "_look_up", late)
    done = train(tmp_path)
    assert [progress.next_epoch for progress in done] == [4, 9, 16]
    assert recorded(tmp_path) == unbroken
    assert batches(tmp_path) == TOGETHER


# kills


class Killed(BaseException):
    pass


def dies_after(calls: int, method: Any) -> Any:
    """The method, until it has been called so often."""
    seen = 0

    def mortal(*arguments: Any) -> Any:
        nonlocal seen
        result = method(*arguments)
        seen += 1
        if seen == calls:
            raise Killed
        return result

    return mortal


@pytest.mark.parametrize("saves", [1, 2, 4, 5, 7, 8, 14, 17])
@pytest.mark.parametrize("begins", [1, 2])
def test_a_kill_between_two_seeds_and_another_on_the_way_back(
    tmp_path: Path, unbroken: dict[str, bytes], saves: int, begins: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One seed of a batch has its new checkpoint and the others have not; then some are rewound and some are not."""
    for name, calls in (("save", saves), ("begin", begins)):
        with monkeypatch.context() as patch:
            patch.setattr(Writer, name, dies_after(calls, getattr(Writer, name)))
            with pytest.raises(Killed):
                train(tmp_path)
        for stored in Store(tmp_path).all():
            stored.records()  # a reader finds nothing damaged
    train(tmp_path)
    assert recorded(tmp_path) == unbroken
    assert batches(tmp_path) == TOGETHER


def moments(trainers: Trainers, folder: Path) -> int:
    """How often an unbroken run changes the disk."""
    log = folder / "log"
    assert trainers.run(runs=str(folder / "counted"), seeds=SEEDS, epochs=30, die_at=10**9, log=str(log)) == 0
    return len(log.read_text().splitlines())


def check_kill(trainers: Trainers, runs: Path, first: int, second: int, unbroken: dict[str, bytes]) -> None:
    job = {"runs": str(runs), "seeds": SEEDS, "epochs": 30}
    assert trainers.run(**job, die_at=first) == -signal.SIGKILL
    assert trainers.run(**job, die_at=second) in (-signal.SIGKILL, 0)  # it may be done before
    assert trainers.run(**job) == 0
    assert recorded(runs) == unbroken, (first, second)
    assert batches(runs) == TOGETHER, (first, second)


def test_a_kill_at_any_moment_leaves_no_trace(tmp_path: Path, unbroken: dict[str, bytes], trainers: Trainers) -> None:
    """Killed just before a change of the disk, killed again while it resumes, and then left alone."""
    draw = random.Random(0)
    total = moments(trainers, tmp_path)
    assert total > 200
    for moment in draw.sample(range(1, total + 1), 24):
        check_kill(trainers, tmp_path / str(moment), moment, draw.randint(1, 40), unbroken)


@pytest.mark.slow
def test_a_kill_at_every_moment_leaves_no_trace(tmp_path: Path, unbroken: dict[str, bytes], trainers: Trainers) -> None:
    draw = random.Random(1)
    for moment in range(1, moments(trainers, tmp_path) + 1):
        check_kill(trainers, tmp_path / str(moment), moment, draw.randint(1, 40), unbroken)


def test_kills_at_random_times_leave_no_trace(tmp_path: Path, unbroken: dict[str, bytes], trainers: Trainers) -> None:
    """Killed until it is done; each time a little later, so that the slowest machine gets there."""
    draw, job = random.Random(0), {"runs": str(tmp_path / "runs"), "seeds": SEEDS, "epochs": 30}
    start = time.monotonic()
    assert trainers.run(**{**job, "runs": str(tmp_path / "timed")}) == 0
    kills, ended, longest = 0, -signal.SIGKILL, (time.monotonic() - start) / 20
    while ended == -signal.SIGKILL:
        process = trainers.start(**job)
        time.sleep(draw.uniform(0, longest))
        os.kill(process, signal.SIGKILL)  # it is not waited for yet: the number is still its own
        ended = trainers.wait(process)
        kills += ended == -signal.SIGKILL
        longest *= 1.15
    assert ended == 0
    assert kills >= 4
    assert recorded(tmp_path / "runs") == unbroken
    assert batches(tmp_path / "runs") == TOGETHER


# the paper


@pytest.mark.slow
def test_egd_groks_addition_modulo_97_when_the_paper_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """116 epochs in the paper; 106 to 124 in 16 seeds of ours."""
    monkeypatch.setattr(sweeps, "SAVE_EVERY", 10.0)
    torch.set_num_threads(2)
    done = sweep(catalog.load("addition-97"), "egd", [0, 1, 2], Store(tmp_path), CPU)
    crossed = [progress.crossed for progress in done]
    assert None not in crossed
    assert 90 <= statistics.median(crossed) <= 140
    assert all(progress.last["active"] is False for progress in done)
    assert all(progress.next_epoch == progress.crossed + 6 for progress in done)


def test_stored_progress_is_what_training_returned(tmp_path: Path) -> None:
    request = Request("", "egd", (6, 0), "cpu", 1, tmp_path, epochs=5, past=1, final=True, preloaded=groks())
    ((new, other),) = stored_progress([request])
    assert (new.next_epoch, other.next_epoch) == (0, 0)
    assert not list(tmp_path.rglob("records.jsonl"))
    (trained,), (stored,) = train_requests([request], Silent()), stored_progress([request])
    assert [each.outcome for each in stored] == [each.outcome for each in trained]
    assert [each.curve for each in stored] == [each.curve for each in trained]
    assert [each.next_epoch for each in stored] == [5, 5]
