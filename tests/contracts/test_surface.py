"""Public names and signatures are those listed here: every change of them changes this file."""

from __future__ import annotations

import inspect
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import typed

import egalitarian as eg

SIGNATURES = {
    "polar": "(G, *, method='auto', precision='exact', rtol=None, floor=None)",
    "explain": "(G, *, method='auto', precision='exact', rtol=None, floor=None)",
    "polar_lowrank": "(G, rank, *, iterations=2, oversample=0, seed=0, rtol=None, share=None, sketch=None)",
    "normalize": "(G, *, floor=0.01)",
    "spectrum": "(G)",
    "matrices": "(model, *, include=None, exclude=(), head='auto', split=None, stack=None, example=None)",
    "equalize_": "(plan, transform=Polar(), *, state=None)",
    "attach": (
        "(optimizer, model_or_plan, transform=Polar(precision='auto'), *, decay_before=0.0, until=None, "
        "on_nonfinite='keep', spectrum_every=0, capture=True, save_with_optimizer=True, shard='auto')"
    ),
    "EGD": (
        "(params_or_plan, lr, *, momentum=0.0, nesterov=False, weight_decay=0.0, decay_before=0.0, "
        "transform=Polar(precision='auto'), foreach=None, maximize=False, capture=True, shard='auto')"
    ),
    "Until": "(threshold, mode='max', patience=0, resume=False, margin=0.0)",
    "Polar": "(*, compute=None, rtol=None, floor=None, method='auto', precision='exact', scale=None)",
    "LowRankPolar": (
        "(rank, cap=False, *, compute=None, rtol=None, iterations=2, oversample=0, seed=0, fixed=False, share=None)"
    ),
    "RowNorm": "(floor=0.01)",
    "Natural": "(*, compute=None, rtol=None)",
    "GrokfastEMA": "(alpha=0.98, lamb=2.0, *, plan=None)",
    "GrokfastMA": "(window=100, lamb=5.0, warmup=True, *, plan=None)",
    "Momentum": "(beta=0.95, nesterov=False, *, plan=None)",
    "Identity": "(*, plan=None)",
    "Sketches": "()",
}
RETURNED = {"Attachment", "Plan", "Spectrum", "State"}
ATTACHMENT = {"plan", "active", "on", "off", "remove", "observe", "spectrum", "state_dict", "load_state_dict", "optimizer"}


def bare(name: str) -> str:
    signature = inspect.signature(getattr(eg, name))
    parameters = [each.replace(annotation=inspect.Parameter.empty) for each in signature.parameters.values()]
    return str(signature.replace(parameters=parameters, return_annotation=inspect.Signature.empty))


def test_public_names_are_those_listed() -> None:
    assert set(eg.__all__) == set(SIGNATURES) | RETURNED
    assert dir(eg) == sorted(eg.__all__)


@pytest.mark.parametrize("name", SIGNATURES)
def test_a_signature_is_the_listed_one(name: str) -> None:
    assert bare(name) == SIGNATURES[name]


@pytest.mark.parametrize("name", sorted(eg.__all__))
def test_every_public_name_is_documented(name: str) -> None:
    assert inspect.getdoc(getattr(eg, name))


def test_an_attachment_has_the_listed_attributes() -> None:
    import torch

    layer = torch.nn.Linear(2, 2)
    egd = eg.attach(torch.optim.SGD(layer.parameters(), lr=0.1), layer)
    assert {name for name in dir(egd) if not name.startswith("_")} == ATTACHMENT


def test_names_are_imported_at_first_use_and_stay_what_a_user_makes_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(eg, "polar", None)
    assert not hasattr(eg, "a_name_that_is_not_there")
    assert eg.polar is None
    assert eg.kernels.polar is not None  # type: ignore[attr-defined]


def test_a_type_checker_refuses_a_misspelt_name() -> None:
    """`make types` fails if it takes the name, since the comment below is then superfluous."""
    with pytest.raises(AttributeError, match="has no attribute 'attech'"):
        _ = eg.attech  # type: ignore[attr-defined]


def test_a_question_about_a_private_name_imports_nothing() -> None:
    """Notebooks ask every object for names such as `_repr_html_`."""
    result = run("-c", "import sys, egalitarian; print(hasattr(egalitarian, '_repr_html_'), 'torch' in sys.modules)")
    assert result.stdout.split() == ["False", "False"], result.stderr


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Runs Python on the source tree, with nothing installed."""
    source = str(Path(__file__).parents[2] / "src")
    return subprocess.run([sys.executable, *arguments], env={"PYTHONPATH": source}, capture_output=True, text=True)


def test_importing_needs_nothing_but_torch() -> None:
    code = (
        "import sys, torch; before = set(sys.modules); import egalitarian; egalitarian.attach\n"
        "print(sorted({name.split('.')[0] for name in set(sys.modules) - before} - set(sys.stdlib_module_names)))"
    )
    result = run("-c", code)
    assert result.stdout.strip() == "['egalitarian']", result.stderr


def test_the_command_line_works_from_a_source_tree() -> None:
    assert run("-m", "egalitarian", "--version").stdout.strip() == f"egalitarian {eg.__version__}"
    asked = run("-m", "egalitarian", "--help")
    assert asked.returncode == 0
    assert "grok" in asked.stdout


def test_without_the_lab_extra_the_pip_line_is_printed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import importlib.util

    from egalitarian.__main__ import main

    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert main(["grok"]) == 2
    assert "pip install 'egalitarian[lab]'" in capsys.readouterr().err


def test_what_a_user_writes_with_types_works() -> None:
    """`make types` checks the same file strictly."""
    model = typed.Policy()
    heads = [[entry.name for entry in plan.taken] for plan in typed.plans(model)]
    assert heads == [["body.weight", "middle.weight"]] * 6
    _, egd = typed.attached(model)
    assert typed.switched(egd) is True
    assert torch.isfinite(typed.stepped(model))
    assert typed.equalised(model).step == 2
