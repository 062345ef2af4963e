"""`report`, `check` and `toy`: what they write and print."""

from __future__ import annotations

import errno
import os
import re
import shutil
from pathlib import Path

import pytest
from report_records import write_run

from egalitarian.lab.bench import kernels
from egalitarian.lab.runs import Store
from egalitarian.lab.tuning import read_results

RESULTS = Path(__file__).parents[3] / "results"


def test_report_and_check_of_an_empty_store(command, tmp_path: Path) -> None:
    (tmp_path / "results" / "evidence").mkdir(parents=True)  # with no file in it
    for arguments in (["check"], ["report"]):
        code, _, err = command(*arguments)
        assert code == 2
        assert err == (
            "egalitarian: no stored runs in runs and no evidence in results/evidence; train with `egalitarian run`, or "
            "name a folder with --runs\n"
        )
        code, _, err = command(*arguments, "addition-79", "addition-98")
        assert (code, "addition-98" in err, "--runs" in err) == (2, True, False), "a wrong name is wrong with any runs"
        assert (
            "--runs must be a folder of stored runs or of evidence, got there" in command(*arguments, "--runs", "there")[2]
        )
    (tmp_path / "runs").mkdir()
    code, out, _ = command("check", "addition-97")
    assert code == 0
    assert "not run" in out
    code, out, _ = command("report", "--out", "somewhere")
    assert (code, (tmp_path / "somewhere" / "index.html").exists()) == (0, False)
    assert "Read somewhere/README.md. --html writes everything into one web page." in out
    code, out, _ = command("report", "--out", "somewhere", "--html")
    assert (code, (tmp_path / "somewhere" / "index.html").exists()) == (0, True)
    assert "Open somewhere/index.html in a browser" in out


def test_damaged_evidence_is_skipped_and_said(command, tmp_path: Path) -> None:
    """As a damaged run of a store is: the rest is written, and the exit is 1. Other experiments do not notice."""
    for experiment in ("addition-97", "multiplication-97"):
        write_run(Store(tmp_path / "runs"), experiment, "egd", 0, 20)
    assert command("pack")[0] == 0
    path = tmp_path / "results" / "evidence" / "addition-97.xz"
    path.write_bytes(path.read_bytes()[:-100])
    evidence = ("--runs", "results/evidence")
    for words in (["report", "--out", "all"], ["check"], ["pack", "--out", "other"]):
        code, out, _ = command(*words, *evidence)
        assert code == 1
        assert "addition-97.xz is incomplete or damaged: Compressed data ended" in out
        assert "; copy it again, or delete it and run `egalitarian pack`" in out
    assert "from 1 run" in command("report", "--out", "one", *evidence)[1]
    assert (tmp_path / "other" / "multiplication-97.xz").exists()
    for words in (["report", "multiplication-97", "--out", "two"], ["check", "multiplication-97"]):
        code, out, _ = command(*words, *evidence)
        assert (code, "damaged" in out) == (0, False)


def test_pack_says_what_is_unfinished_and_what_it_leaves_out(command, tmp_path: Path) -> None:
    store = Store(tmp_path / "runs")
    write_run(store, "addition-97", "egd", 0, 20)
    assert "nfinished runs" not in command("pack")[1]
    write_run(store, "addition-97", "egd", 1, epochs=20)
    write_run(store, "addition-97", "egd", 1, 20, changes=["optim.lr=2.0"])
    code, out, _ = command("pack")
    assert code == 0
    assert re.search(r"addition-97 +2 +1 +0 +1 +46 ", out)
    assert "Unfinished runs have epochs of their budget left. Once they are trained, pack again." in out
    assert "Left out, as their settings are not the experiment's: addition-97 (1). --all packs them." in out
    code, out, _ = command("pack", "--all")
    assert code == 0
    assert re.search(r"addition-97 +3 +1 +0 +1 +72 ", out)
    assert "Left out" not in out


def test_check_says_where_it_cannot_write(command, tmp_path: Path) -> None:
    (tmp_path / "runs").mkdir()
    code, _, err = command("check", "addition-97", "--record", "nowhere/verdicts.toml")
    assert code == 2
    assert err.startswith("egalitarian: nowhere/verdicts.toml must be writable, got: No such file or directory; ")
    assert command("check", "addition-97", "--record", "verdicts.toml")[0] == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["runs", "verdicts.toml"]


@pytest.mark.parametrize(
    "words", [["toy", "--quick"], ["report", "addition-97"], ["bench", "kernels", "--quick", "--device", "cpu"]]
)
def test_a_full_disk_is_an_error_with_a_way_out(
    words: list[str], command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "runs").mkdir()
    write = Path.write_bytes

    def full(path: Path, content: bytes) -> int:
        write(path, content[:100])
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(Path, "write_bytes", full)
    monkeypatch.setattr(kernels, "QUICK", ((4, 6),))
    code, out, err = command(*words, "--out", "out")
    assert code == 2
    assert err == (
        "egalitarian: out must be writable, got: No space left on device; free some space, fix the permissions, or name "
        "another folder with --out\n"
    )
    assert not [path for path in (tmp_path / "out").rglob("*") if path.is_file()], "half a file"
    assert ("4 x 6" in out) == (words[0] == "bench"), "what was measured is shown"


@pytest.mark.parametrize("words", [["toy", "--quick"], ["report"], ["bench", "kernels", "--quick", "--device", "cpu"]])
def test_a_folder_that_cannot_be_made_is_named_before_any_work(words: list[str], command, tmp_path: Path) -> None:
    (tmp_path / "runs").mkdir()
    (tmp_path / "file").touch()
    code, out, err = command(*words, "--out", "file/out")
    assert (code, out) == (2, "")
    assert err.startswith("egalitarian: file/out must be writable, got: Not a directory; free some space, ")


@pytest.mark.parametrize("words", [["toy", "--quick"], ["report"], ["bench", "kernels", "--quick", "--device", "cpu"]])
def test_a_link_to_itself_is_no_folder(words: list[str], command, tmp_path: Path) -> None:
    (tmp_path / "runs").mkdir()
    (tmp_path / "loop").symlink_to("loop")
    code, _, err = command(*words, "--out", "loop")
    assert code == 2
    assert err.startswith("egalitarian: loop must be writable, got: File exists; free some space, ")


def test_toy_says_what_holds(command, tmp_path: Path) -> None:
    code, out, _ = command("toy", "--quick", "--eps", "0.1", "--out", "figures")
    assert code == 0
    found = re.search(r"Of (\d+) claims (\d+) hold as printed, (\d+) in part, (\d+) fail", out)
    assert found
    claims, *parts = (int(number) for number in found.groups())
    assert sum(parts) == claims > 40
    assert len((tmp_path / "figures" / "toy-claims.csv").read_text().splitlines()) > 100
    assert len(list((tmp_path / "figures").glob("*.png"))) == 4


def test_the_page_has_the_tables_of_the_fair_comparison_from_the_reports_folder(command, tmp_path: Path) -> None:
    (tmp_path / "runs").mkdir()
    out = tmp_path / "out"
    out.mkdir()
    shutil.copy(RESULTS / "tuned-addition.json", out)
    (out / "tuned-broken.json").write_text("{")
    code, said, _ = command("report", "addition-97", "--out", "out", "--html")
    assert code == 1
    assert "Left out of the table:" in said
    page = (out / "index.html").read_text(encoding="utf-8")
    found = read_results(out / "tuned-addition.json")
    for title in found["titles"].values():
        assert re.search(rf">{title}(?: \(partial\))?</h3>", page)
    for entry in found["methods"].values():
        assert f"<td>{' '.join(entry['title'].split())}" in page
    assert (out / "tuned-addition.json").exists()
    shutil.rmtree(out)
    assert command("report", "addition-97", "--out", "out", "--html")[0] == 0
    assert "Nothing of it is stored next to this report." in (out / "index.html").read_text(encoding="utf-8")
