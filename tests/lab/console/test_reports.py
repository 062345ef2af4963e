"""`report`, `check` and `toy`: what they write and print."""

from __future__ import annotations

import re
from pathlib import Path


def test_report_and_check_of_an_empty_store(command, tmp_path: Path) -> None:
    for arguments in (["check"], ["report"]):
        code, _, err = command(*arguments)
        assert code == 2
        assert "--runs must be a folder of stored runs, got runs" in err
    (tmp_path / "runs").mkdir()
    code, out, _ = command("check", "addition-97")
    assert code == 0
    assert "not run" in out
    assert command("report", "--out", "somewhere")[0] == 0
    assert (tmp_path / "somewhere" / "index.html").exists()


def test_check_says_where_it_cannot_write(command, tmp_path: Path) -> None:
    (tmp_path / "runs").mkdir()
    code, _, err = command("check", "addition-97", "--record", "nowhere/verdicts.toml")
    assert code == 2
    assert err.startswith("egalitarian: nowhere/verdicts.toml must be writable, got: No such file or directory; ")
    assert command("check", "addition-97", "--record", "verdicts.toml")[0] == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["runs", "verdicts.toml"]


def test_toy_says_what_holds(command, tmp_path: Path) -> None:
    code, out, _ = command("toy", "--quick", "--eps", "0.1", "--out", "figures")
    assert code == 0
    found = re.search(r"Of (\d+) claims (\d+) hold as printed, (\d+) in part, (\d+) fail", out)
    assert found
    claims, *parts = (int(number) for number in found.groups())
    assert sum(parts) == claims > 40
    assert len((tmp_path / "figures" / "toy-claims.csv").read_text().splitlines()) > 100
    assert len(list((tmp_path / "figures").glob("*.png"))) == 4
