"""The three sentences on top of a page: computed from the runs at hand, and what they say where runs are missing."""

from __future__ import annotations

from pathlib import Path

from report_records import write_gains, write_run

from egalitarian.lab.analysis import gather, judge, task_speeds
from egalitarian.lab.report.findings import Finding, findings
from egalitarian.lab.report.write import contents_for
from egalitarian.lab.runs import Store

TRAIN = "egalitarian run what-is-missing"


def found(store: Store, *experiments: str) -> tuple[Finding, ...]:
    gathered = gather(store, experiments)
    contents = contents_for(gathered)
    speeds = task_speeds(gathered, [each.name for each in gathered.experiments])
    return findings(contents, gathered, judge(contents, gathered), speeds, TRAIN)


def test_they_follow_the_runs(tmp_path: Path) -> None:
    cells, fastest, gain = found(write_gains(Store(tmp_path)))
    assert cells.text == (
        "Of 98 numbers that can be compared, 0 lie within the range of our seeds and 0 outside. "
        "The rest: 11 with too few or unfinished seeds, 87 not run."
    )
    assert fastest.text.startswith(
        "The fewest epochs, of 2 tasks: “EGD” on 1 and “EGD, decay after (lr 3)” on 1. These are medians of the seeds."
    )
    assert gain.text.startswith("On average over 2 tasks, the paper's SGD needs 10.0× the epochs of EGD; averages from")
    assert (cells.command, fastest.command, gain.command) == (TRAIN, "", TRAIN), "Table 5 has nine tasks"


def test_one_task_has_a_sentence_of_its_own(tmp_path: Path) -> None:
    store = Store(tmp_path)
    for seed in range(8):
        write_run(store, "addition-97", "sgd", seed, 300)
        write_run(store, "addition-97", "egd", seed, 110 + seed)
    cells, fastest, gain = found(store, "addition-97")
    assert "1 lie within the range of our seeds and 1 outside. The rest: 3 not run." in cells.text
    assert fastest.text.startswith("On Addition modulo 97, EGD passes first, after 113.5 epochs, of 2 methods.")
    assert gain.text == (
        "On Addition modulo 97, EGD passes after 113.5 epochs and SGD after 300: a gain of 2.6×, as a ratio of medians."
    )


def test_without_runs_they_name_the_command(tmp_path: Path) -> None:
    cells, fastest, gain = found(Store(tmp_path))
    assert "0 outside. The rest: 98 not run." in cells.text
    assert fastest.text == "No task has runs of two methods of which one passes the threshold, so none is the fastest."
    assert gain.text == "No task has both: a baseline that passes, and a method with EGD that does."
    assert {each.command for each in (cells, fastest, gain)} == {TRAIN}


def test_an_experiment_that_is_not_the_papers_has_nothing_to_compare(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text('extends = "addition-97"\n[task]\nmodulus = 31\n')
    store = Store(tmp_path / "runs")
    write_run(store, str(tmp_path / "mine.toml"), "egd", 0, 20)
    cells, fastest, _ = found(store, str(tmp_path / "mine.toml"))
    assert cells == (
        "The paper's numbers",
        "The paper has no numbers on these experiments, so there is nothing to compare.",
        "",
    )
    assert fastest.command == TRAIN
