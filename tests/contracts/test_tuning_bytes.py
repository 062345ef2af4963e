"""The table 'tuned fairly', rendered from the committed results: its digest is in `data/tuning-digests.json`.

`python tests/contracts/test_tuning_bytes.py --save` rewrites that file. Nothing is trained.
"""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path

from egalitarian.lab.console.tuning import markdown
from egalitarian.lab.tuning import all_results, load_plan

GOLDEN = Path(__file__).parent / "data" / "tuning-digests.json"
RESULTS = Path(__file__).parents[2] / "results"


def digest(content: str | bytes) -> str:
    return hashlib.sha256(content.encode() if isinstance(content, str) else content).hexdigest()


def sources() -> dict[str, str]:
    """sha256 of the files that the table is made of."""
    return {path.name: digest(path.read_bytes()) for path in sorted(RESULTS.glob("tuned-*.json"))}


def tables() -> dict[str, str]:
    """sha256 of the table of all families, and of each family's own."""
    found, messages = all_results(RESULTS, "", list(load_plan()))
    assert messages == []
    return {"all": digest(markdown(found))} | {each["family"]: digest(markdown([each])) for each in found}


def test_the_committed_results_are_those_that_were_rendered() -> None:
    assert sources() == json.loads(GOLDEN.read_text(encoding="utf-8"))["sources"], "new results: run this file with --save"


def test_the_tables_are_rendered_as_they_were() -> None:
    assert tables() == json.loads(GOLDEN.read_text(encoding="utf-8"))["tables"]


def save() -> None:
    GOLDEN.parent.mkdir(exist_ok=True)
    GOLDEN.write_text(json.dumps({"sources": sources(), "tables": tables()}, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    if sys.argv[1:] != ["--save"]:
        raise SystemExit(f"usage: python {sys.argv[0]} --save")
    save()
