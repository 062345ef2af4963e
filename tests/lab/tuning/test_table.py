"""The table 'tuned fairly': settings, counts and gains of each method."""

from __future__ import annotations

from typing import Any

from egalitarian.lab.console.tuning import markdown
from egalitarian.lab.tuning.table import rows


def entry(crossed: list[int | None], train: float = 0.5, **more: Any) -> dict[str, Any]:
    fresh = [
        {"crossed": one, "epochs": 20, "diverged": False, "mean_train_accuracy": train, "seed": 0, "id": ""}
        for one in crossed
    ]
    best = {"lr": 0.5, "decay": 0.001, "budget": 20, "passes": True}
    rules = {"size": 5, "no_decay": False, "validation": 0.5, "lr_factor": 2.0, "decay_factor": 3.0}
    about = {
        "rules": rules,
        "tuning_seeds": [1],
        "fresh_seeds": [0],
        "environment": {"hardware": "H", "when": "2026-11-15"},
    }
    whole = {
        "title": "SGD",
        "complete": True,
        "best": best,
        "fresh": fresh,
        "points": [{"seeds": []}] * 30,
        "spent": {"H, 2026-11-15": 60.0},
    }
    return {**whole, "windows": [{}, {}], "inside": True, **about, **more}


def table(score: str, plain: dict[str, Any], **others: dict[str, Any]) -> dict[str, Any]:
    about = {"family": "f", "experiment": "e", "title": "T", "plain": "sgd", "score": score, "threshold": 0.95}
    return {**about, "changes": [], "quick": False, "complete": True, "methods": {"sgd": plain, **others}}


def test_the_table_has_settings_counts_and_gains() -> None:
    slow, fast = entry([99, 299, 199]), entry([9, 29, 19], title="EGD", inside=False)
    failed = entry([None, None, 7], title="other")
    found = [tuple(row) for row in rows(table("epochs", slow, egd=fast, other=failed))]
    assert found == [
        ("SGD", "0.5", "0.001", "30, 1 move", "yes", "199 (99–299)", "3 of 3", "1.0×"),
        ("EGD", "0.5", "0.001", "30, 1 move", "no, on the edge", "19 (9–29)", "3 of 3", "10.0×"),
        ("other", "0.5", "0.001", "30, 1 move", "yes", "> 20 (7 to > 20)", "1 of 3", "< 10.0×"),
    ]
    at_once = entry([0, 0, 0])
    assert [row.gain for row in rows(table("epochs", slow, egd=at_once))] == ["1.0×", "200.0×"], (
        "epoch 0 is one epoch's work"
    )
    assert [row.gain for row in rows(table("epochs", failed, egd=fast))] == ["–", "–"], "a plain optimizer that fails"
    better = entry([None], 0.75, title="EGD")
    assert [row.gain for row in rows(table("train-accuracy", entry([None]), egd=better))] == ["+0.0 points", "+25.0 points"]
    text = markdown([table("train-accuracy", entry([None]), egd=better)])
    assert "| EGD | 0.5 | 0.001 | 30, 1 move | yes | 75.0 % (75.0–75.0) | – | +25.0 points |" in text
    assert "`e`, 5 x 5 windows, steps of 2 in lr and 3 in decay" in text
