"""Recordings are kept and read back, and no report counts them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from small import groks, run

from egalitarian.lab.analysis import gather
from egalitarian.lab.runs import RunRecording, Stop, Store, StoreError, open_source, pack, recordings_in

ABOUT = {"experiment": "addition-97", "method": "egd", "seed": 3}
RECORDS = [{"epoch": epoch, "train_accuracy": 0.5, "test_accuracy": float("nan")} for epoch in range(3)]


def test_a_recording_is_read_as_it_was_written(tmp_path: Path) -> None:
    recording = RunRecording.begin(tmp_path, ABOUT, RECORDS)
    recording.append([{"epoch": 3, "change": {"optim.lr": 0.5, "until": None}}, {"epoch": 3, "test_accuracy": 0.9}])
    first, *lines = recording.read()
    assert {key: first[key] for key in ABOUT} == ABOUT
    assert [line["epoch"] for line in lines] == [0, 1, 2, 3, 3]
    assert lines[3]["change"] == {"optim.lr": 0.5, "until": None}
    assert recordings_in(tmp_path) == [recording.path]


def test_two_of_one_second_have_files_of_their_own(tmp_path: Path) -> None:
    paths = {RunRecording.begin(tmp_path, ABOUT, []).path for _ in range(3)}
    assert len(paths) == 3


def test_a_line_that_was_cut_off_is_left_out(tmp_path: Path) -> None:
    recording = RunRecording.begin(tmp_path, ABOUT, RECORDS)
    os.truncate(recording.path, recording.path.stat().st_size - 5)
    assert [line["epoch"] for line in recording.read()[1:]] == [0, 1]


@pytest.mark.parametrize("content", ["", "[]\n", '{"format": "another"}\n', "not JSON\n"])
def test_another_file_is_refused(tmp_path: Path, content: str) -> None:
    path = tmp_path / "x.recording.jsonl"
    path.write_text(content)
    with pytest.raises(StoreError, match="must be as the lab wrote it"):
        RunRecording(path).read()


def test_a_full_disk_is_said_and_names_the_file(tmp_path: Path) -> None:
    recording = RunRecording.begin(tmp_path, ABOUT, [])
    recording.path.unlink()
    recording.path.symlink_to("/dev/full")
    with pytest.raises(
        StoreError, match=r"recording\.jsonl must be writable, got: No space left.*its first change is stored"
    ):
        recording.append(RECORDS)


def test_a_folder_of_recordings_is_refused_by_whatever_reads_runs(tmp_path: Path) -> None:
    RunRecording.begin(tmp_path, ABOUT, RECORDS)
    with pytest.raises(StoreError, match=r"got recordings, such as addition-97-egd-seed-3-.*no table may count them"):
        open_source(tmp_path / "recordings")


def test_recordings_next_to_runs_are_said_and_not_counted(tmp_path: Path) -> None:
    run(tmp_path, groks(), "egd", [0], Stop(0.9, 2, 0))
    plain = gather(Store(tmp_path), ["parity-2"])
    recording = RunRecording.begin(tmp_path, {"experiment": "parity-2", "method": "egd", "seed": 0}, RECORDS)
    both = gather(open_source(tmp_path), ["parity-2"])
    assert both.runs == plain.runs
    assert both.variants == plain.variants
    (remark,) = set(both.remarks) - set(plain.remarks)
    assert remark.startswith("Recordings, whose settings changed while they trained, are counted nowhere: ")
    assert recording.path.name in remark
    packed = pack(open_source(tmp_path), tmp_path / "evidence", everything=True)
    assert [written.runs for written in packed.written] == [1]
