"""The report, byte by byte: a store of made-up runs gives files with the digests in `data/report-digests.json`.

Evidence that is packed from the store gives the same files, pictures included.

`python tests/contracts/test_report_bytes.py --save` writes that file again. Nothing is trained.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import matplotlib
import numpy
import PIL
import pytest
import report_records
import torch
from report_records import write_run

from egalitarian.lab.analysis import check, in_words
from egalitarian.lab.report import to_csv, write_report
from egalitarian.lab.runs import Evidence, Record, Source, Store, pack

GOLDEN = Path(__file__).parent / "data" / "report-digests.json"
PICTURES = (".png", ".svg", ".html")
"""An HTML page holds pictures."""
COMPARE_PICTURES = os.environ.get("EGALITARIAN_PICTURES") == "1"
OWN = {
    "mine": 'extends = "addition-97"\ntitle = "Mine_1 & co"\n[task]\nmodulus = 31\n',
    "ends": 'extends = "mnist"\ntitle = "Accuracy at the end"\n[measure]\nthreshold = 1.0\n',
}
"""A user's experiments, by file: one that waits for a threshold, and one that has none to wait for."""
MODULAR = tuple(f"{name}-{modulus}" for name in ("addition", "multiplication") for modulus in (79, 97, 127))
PARITY = ("parity-2", "parity-3", "parity-4")
COMMON = {"sgd": 150, "egd": 24, "row-norm": 60, "egd-after": 14}
"""Epochs to the threshold, by method."""
MORE = {"sgd-lr5": 70, "egd-rsvd-128": 28, "egd-rsvd-64": 36}
RANKS = {"egd-rsvd-40": 20, "egd-rsvd-30": 26, "egd-rsvd-20": 32, "egd-rsvd-10": 48}
AS_PRINTED = {("addition-97", "egd"): 113, ("parity-2", "egd"): 106}
"""Near the paper's numbers, so that verdicts are of every kind."""
JUDGED = {("addition-97", "row-norm"), ("parity-4", "row-norm"), ("parity-4", "egd-rsvd-40")}
"""Methods with the seeds of a verdict, beside SGD and EGD."""
FIELD = ("muon", "grokfast-ema", "grokfast-ma", "egd-grokfast", "adamw")
FIRST = ("addition-97", "parity-2", "multiplication-79")
"""Experiments that have runs of the methods in `FIELD` as well."""
SHUFFLED = tuple(f"cifar-shuffle-{times}" for times in (1, 3, 4, 9))

_plain_record = report_records.a_record


def varied_record(epoch: int, crossed: int | None, last: int, threshold: float = 0.95) -> Record:
    """A made-up record whose spectrum depends on the run, so that rank correlations are not all alike."""
    record = _plain_record(epoch, crossed, last, threshold)
    unlike = 1 + (7 * (crossed or 0) % 11) / 8  # exact in binary
    return record | {"sigma_min": record["sigma_min"] / unlike, "effective_rank": record["effective_rank"] - unlike}


def fill(store: Store) -> None:
    """Runs for every kind of table and figure: some diverged, did not pass, have no epoch, or are unfinished."""
    for index, experiment in enumerate(MODULAR + PARITY):
        methods = COMMON | (RANKS if experiment in PARITY else MORE)
        if experiment in FIRST:
            methods = methods | {name: 30 + 9 * number for number, name in enumerate(FIELD)}
        for method, crossed in methods.items():
            at = AS_PRINTED.get((experiment, method), crossed + 3 * index)
            judged = method in ("sgd", "egd") or (experiment, method) in JUDGED
            for seed in range(8 if judged else 3):
                about: dict[str, Any] = {"polar": ("exact", "fast")[seed % 2]} if "egd" in method else {}
                write_run(store, experiment, method, seed, at + (5 * seed) % 7, ms=1.0 + index, **about)
    write_run(store, "addition-97", "natural", 0)  # never passes in its budget
    write_run(store, "addition-97", "natural", 1, epochs=40, diverged=True)
    write_run(store, "addition-97", "muon", 5, epochs=33)  # unfinished
    write_run(store, "addition-97", "egd", 9, epochs=0)  # not begun
    write_run(store, "addition-97", "egd-rsvd-128", 3, epochs=33)  # unfinished, and the paper has it
    write_run(store, "addition-97", "egd", 0, 8, changes=["optim.lr=2.0"])
    write_run(store, "parity-2", "egd", 8, 108, device="cpu", hardware="AMD EPYC", threads=2, commit="aaaaaaaaaaaa+")
    write_run(store, "parity-2-hinge", "egd", 0, 25)
    write_run(store, "addition-97-decay-after", "egd", 0, 15)
    fill_accuracies(store)


def fill_accuracies(store: Store) -> None:
    """MNIST, the transformer, and CIFAR-10 with shuffled labels."""
    for seed in range(3):
        for experiment, methods in {
            "mnist": {"adamw": 80, "grokfast-ema": 30, "egd": 6, "egd-rsvd-8": 9, "adamw-decay": 17},
            "transformer": {"adam": 200, "grokfast-ema": 70, "egd": 40, "adam-decay": 90},
        }.items():
            for method, crossed in methods.items():
                whole = method.startswith(("egd", "grok")) and seed == 0
                write_run(store, experiment, method, seed, crossed + 2 * seed, epochs=300 if whole else None)
        write_run(store, "mnist", "egd-rsvd-16", seed, epochs=30, diverged=seed == 2)
        for experiment in SHUFFLED:
            write_run(store, experiment, "adam-egd", seed, learnt=lambda epoch: 0.625)
            broken = seed == 1
            write_run(
                store, experiment, "radam", seed, learnt=lambda epoch: 0.25, epochs=40 if broken else None, diverged=broken
            )
    for seed in range(8):
        for index, experiment in enumerate(SHUFFLED):
            mean = 0.25 + seed % 3 / 16 + index / 32
            write_run(store, experiment, "adam", seed, learnt=lambda epoch, mean=mean: mean + 0.125 * (-1) ** epoch)
        write_run(store, "mnist", "egd-rsvd-4", seed, 9 + seed, epochs=300)
        write_run(store, "transformer", "egd-rsvd-36", seed, 50 + 2 * seed if seed else None)
    write_run(store, "cifar-shuffle-3", "rmsprop", 0, epochs=40)


def fill_own(store: Store) -> None:
    """A user's two experiments, as files, and their runs."""
    for name, text in OWN.items():
        Path(f"{name}.toml").write_text(text)
    for seed in range(2):
        write_run(store, "mine.toml", "egd", seed, 20 + seed)
        write_run(store, "mine.toml", "sgd", seed, 90 + seed)
        write_run(store, "ends.toml", "egd", seed)


def digest(content: str | bytes) -> str:
    return hashlib.sha256(content.encode() if isinstance(content, str) else content).hexdigest()


def checked(source: Source, experiments: list[str]) -> dict[str, str]:
    """Digests of the verdicts of `check`, as CSV, and of its messages."""
    found = check(source, experiments)
    verdicts = to_csv([verdict.csv_row() for verdict in found.verdicts])
    messages = "\n".join([in_words(found.verdicts), *found.warnings, *found.remarks, f"{found.is_consistent()}"])
    return {"check verdicts": digest(verdicts), "check told": digest(messages)}


def fill_all() -> tuple[Store, Store]:
    """Both stores, in the current folder."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(report_records, "a_record", varied_record)
        fill(store := Store(Path("runs")))
        fill_own(own := Store(Path("own-runs")))
    return store, own


def build(everything: Source, own: Source) -> dict[str, str]:
    """sha256 of every file and verdict, of two reports, made in the current folder.

    No file needs normalising: dates, sources and versions in it are those of the made-up records. The folders' names
    are relative, and fixed.
    """
    found: dict[str, str] = {}
    for name, each, experiments in (("all", everything, []), ("own", own, [f"{one}.toml" for one in OWN])):
        shutil.rmtree(out := Path(name), ignore_errors=True)
        report = write_report(each, out, experiments, html=True)
        messages = "\n".join([*report.warnings, *report.errors, *report.remarks, *report.cost])
        found[f"{name}: told"] = digest(f"{messages}\n{report.runs} runs, {report.variants} variants")
        found |= {f"{name}: {key}": value for key, value in checked(each, experiments).items()}
        for path in sorted(path for path in out.rglob("*") if path.is_file()):
            found[path.as_posix()] = digest(path.read_bytes())
    return found


def environment() -> dict[str, str]:
    """The versions that the bytes of a picture depend on."""
    versions = {"matplotlib": matplotlib, "numpy": numpy, "pillow": PIL, "torch": torch}
    return {name: str(module.__version__) for name, module in versions.items()} | {"machine": platform.machine()}


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Store, Store]]:
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("report"))
        yield fill_all()


@pytest.fixture(scope="module")
def found(stores: tuple[Store, Store]) -> dict[str, str]:
    return build(*stores)


def test_every_file_of_the_report_has_the_bytes_it_had(found: dict[str, str]) -> None:
    """Texts always. Pictures on request, by EGALITARIAN_PICTURES=1: their last digits depend on the machine's BLAS."""
    golden = json.loads(GOLDEN.read_text(encoding="utf-8"))
    expected = golden["digests"]
    assert sorted(found) == sorted(expected)
    drawn_alike = environment() == golden["environment"]
    assert drawn_alike or not COMPARE_PICTURES, "pictures must be compared with the versions that drew the golden ones"
    compared = [name for name in expected if COMPARE_PICTURES or not name.endswith(PICTURES)]
    assert [name for name in compared if found[name] != expected[name]] == []


def test_evidence_gives_the_report_of_the_runs(stores: tuple[Store, Store], found: dict[str, str]) -> None:
    """Every file, pictures too, and what `check` finds."""
    packed = [Path("packed"), Path("own-packed")]
    for store, out in zip(stores, packed, strict=True):
        assert pack(store, out, everything=True).errors == []
    again = build(*(Evidence(out) for out in packed))
    assert [name for name in found | again if found.get(name) != again.get(name)] == []


def save() -> None:
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        golden = {"environment": environment(), "digests": build(*fill_all())}
        os.chdir("/")
    GOLDEN.parent.mkdir(exist_ok=True)
    GOLDEN.write_text(json.dumps(golden, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    if sys.argv[1:] != ["--save"]:
        raise SystemExit(f"usage: python {sys.argv[0]} --save")
    save()
