"""Writes docs/api.md, the public names with their signatures and docstrings (`make api`). A test holds it to the code."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator, Sequence
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any

import egalitarian

PAGE = Path(__file__).with_name("api.md")
CHAPTERS = {
    "Add EGD to training": ("attach", "Attachment", "EGD", "equalize_", "State"),
    "Choose the matrices": ("matrices", "Plan"),
    "Transforms of a matrix": ("Polar", "LowRankPolar", "RowNorm", "Natural"),
    "Filters over time, to chain with a transform": ("Momentum", "GrokfastEMA", "GrokfastMA", "Identity"),
    "Switch EGD off": ("Until",),
    "Functions on matrices": ("polar", "polar_lowrank", "normalize", "explain", "Sketches"),
    "Measure a gradient": ("spectrum", "Spectrum"),
}
TRAINERS = {
    "EGDCallback": "lightning",
    "EGDTrainerCallback": "huggingface",
    "attach_prepared": "accelerate",
    "SpectrumWriter": "tensorboard",
}
"""The public names of `egalitarian.integrations`, each with its file. That is read, not imported: it needs a trainer."""
MADE_BY_OTHERS = ("Attachment", "Plan")
"""Classes that no caller constructs: `attach` and `matrices` return them."""
LINE = 110
PREFACE = """\
# Every public name

Made from the code by `make api`. The examples assume `import torch`, `from torch import nn` and
`from egalitarian import *`. New here? Read the [README](../README.md) first.

"""
WORDS = """
Words on this page:

- To *equalise* a gradient G = U S Vᵀ means to replace it by its polar factor U Vᵀ.
- A plan *takes* a parameter, so that EGD acts on it, or *leaves* it alone.
- A *stack* is a parameter whose leading axis counts independent matrices, such as experts or seeds.
- A *transform* acts on matrices; a *filter* acts on every parameter and keeps state from step to step.

| type in a signature | what to pass |
|---|---|
| `Transform` | a transform, a filter, or your own subclass of `egalitarian.transforms.MatrixTransform` |
| `Selector` | a name pattern, a module, a module type or a parameter |
| `Precision` | a torch dtype or `'tf32'` |
| `Tier` | `'exact'`, `'fast'` or `'coarse'` |
| `TierChoice` | `'auto'` or a `Tier` |
| `Method` | `'auto'`, `'polynomial'`, `'eigh'`, `'rational'` or `'svd'` |
| `OnNonfinite` | `'keep'` or `'raise'` |
| `Plans` | a `Plan`, or for several optimizers a sequence with a `Plan` or None for each |
"""


def page() -> str:
    lines = PREFACE.splitlines()
    anchors = _anchors()
    for title, names in CHAPTERS.items():
        lines.append(f"- {title}: {', '.join(f'[`{name}`](#{anchors[name]})' for name in names)}")
    linked = ", ".join(f"[`{name}`](#{anchors[name]})" for name in TRAINERS)
    lines.append(f"- In trainers, `egalitarian.integrations`: {linked}")
    lines += WORDS.splitlines()
    for title, names in CHAPTERS.items():
        lines += ["", f"## {title}"]
        for name in names:
            lines += ["", f"### {name}", "", *_about(name)]
    lines += ["", "## In trainers", "", "How to use them: [trainers.md](trainers.md)."]
    for name, file in TRAINERS.items():
        lines += ["", f"### {name}", "", f"From `egalitarian.integrations.{file}`.", "", *_about_unimported(name, file)]
    return "\n".join(lines) + "\n"


def _anchors() -> dict[str, str]:
    """As GitHub makes them of headings: small letters, and a number where two are then alike."""
    names = [*(name for chapter in CHAPTERS.values() for name in chapter), *TRAINERS]
    small = [name.lower() for name in names]
    earlier = [small[:place].count(each) for place, each in enumerate(small)]
    return {
        name: f"{name.lower()}-{before}" if before else name.lower() for name, before in zip(names, earlier, strict=True)
    }


def _about(name: str) -> Iterator[str]:
    thing = getattr(egalitarian, name)
    if name not in MADE_BY_OTHERS:
        yield from _signature(name, thing)
    yield from _text(thing.__doc__)
    if not inspect.isclass(thing):
        return
    (body,) = (node for node in ast.parse(inspect.getsource(thing)).body if isinstance(node, ast.ClassDef))
    yield from _fields(body)
    for member, value in vars(thing).items():
        if member.startswith("_") or not value.__doc__:
            continue
        if isinstance(value, property | cached_property):
            getter = value.fget if isinstance(value, property) else value.func
            yield from ("", f"**`.{member}`** -> `{inspect.signature(getter).return_annotation}`  ", *_text(value.__doc__))
        elif inspect.isfunction(value):
            yield from ("", f"**`.{_call(member, value)}`**  ", *_text(value.__doc__))


def _fields(thing: ast.ClassDef) -> Iterator[str]:
    """Each field that has a docstring: the string below it in the source."""
    for node, below in pairwise(thing.body):
        if isinstance(node, ast.AnnAssign) and isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant):
            kind, words = ast.unparse(node.annotation), inspect.cleandoc(str(below.value.value))
            yield from ("", f"**`.{ast.unparse(node.target)}`** -> `{kind}`  ", words)


def _about_unimported(name: str, file: str) -> Iterator[str]:
    source = (Path(egalitarian.__file__).parent / "integrations" / f"{file}.py").read_text(encoding="utf-8")
    kinds = ast.ClassDef | ast.FunctionDef
    (node,) = (node for node in ast.parse(source).body if isinstance(node, kinds) and node.name == name)
    methods = [each for each in node.body if isinstance(each, ast.FunctionDef)] if isinstance(node, ast.ClassDef) else []
    called = next((each for each in methods if each.name == "__init__"), node)
    assert isinstance(called, ast.FunctionDef)
    yield from _laid_out(name, _arguments(called), _result(called))
    yield from _text(ast.get_docstring(node))
    if isinstance(node, ast.ClassDef):
        yield from _fields(node)
    for each in methods:
        words = ast.get_docstring(each)
        if words and not each.name.startswith("_") and not each.decorator_list:
            yield from ("", f"**`.{each.name}({', '.join(_arguments(each))}){_result(each)}`**  ", *_text(words))


def _arguments(function: ast.FunctionDef) -> list[str]:
    """As `_parts`, of source text."""
    args = function.args
    plain = [each for each in args.args if each.arg != "self"]
    defaults = dict(zip(plain[len(plain) - len(args.defaults) :], args.defaults, strict=True))
    defaults |= {each: value for each, value in zip(args.kwonlyargs, args.kw_defaults, strict=True) if value}

    def text(each: ast.arg) -> str:
        return ast.unparse(each) + (f" = {ast.unparse(defaults[each])}" if each in defaults else "")

    named = ["*", *map(text, args.kwonlyargs)] if args.kwonlyargs else []
    return [*map(text, plain), *named, *([f"**{args.kwarg.arg}"] if args.kwarg else [])]


def _result(function: ast.FunctionDef) -> str:
    found = ast.unparse(function.returns) if function.returns else "None"
    return "" if found == "None" else f" -> {found}"


def _signature(name: str, thing: Any) -> Iterator[str]:
    return _laid_out(name, _parts(thing), _returned(thing))


def _laid_out(name: str, parts: Sequence[str], returned: str) -> Iterator[str]:
    whole = f"{name}({', '.join(parts)}){returned}"
    lines = [f"{name}(", *(f"    {part}," for part in parts), f"){returned}"]
    yield from ("```python", *([whole] if len(whole) <= LINE else lines), "```", "")


def _call(name: str, thing: Any) -> str:
    return f"{name}({', '.join(_parts(thing))}){_returned(thing)}"


def _parts(thing: Any) -> list[str]:
    """The parameters, and a star before those that must be named."""
    kept = [each for each in inspect.signature(thing).parameters.values() if each.name != "self"]
    named = [place for place, each in enumerate(kept) if each.kind is each.KEYWORD_ONLY]
    parts = [_plain(each) for each in kept]
    return [*parts[: named[0]], "*", *parts[named[0] :]] if named else parts


def _plain(parameter: inspect.Parameter) -> str:
    return (
        re.sub(r": '(.*?)'(?= = |$)", r": \1", str(parameter))
        .replace(': "', ": ")
        .replace('"', "")
        .replace("<factory>", "{}")
    )


def _returned(thing: Any) -> str:
    found = inspect.signature(thing).return_annotation
    return "" if found in (inspect.Signature.empty, None, "None") else f" -> {found}"


def _linked(text: str) -> str:
    """With links: to the name after `as for`, and to other pages."""
    anchors = _anchors()

    def link(found: re.Match[str]) -> str:
        return f"as for [`{found[2]}`](#{anchors[found[2]]})"

    text = re.sub(r"`docs/(\w+\.md)(#[\w-]+)?`", r"[\1](\1\2)", text)
    return re.sub(r"as for `(egalitarian\.)?(\w+)`", link, text)


def _text(words: str | None) -> Iterator[str]:
    """The docstring; what it lists as arguments or errors as a list, its examples as code."""
    listed = example = False
    for line in _linked(inspect.cleandoc(words or "")).splitlines():
        if line in ("Args:", "Raises:", "Returns:"):
            listed = True
            yield from (line, "")
        elif line.startswith(">>>") and not example:
            example, listed = True, False
            yield from ("```pycon", line)
        elif example and not line:
            example = False
            yield from ("```", "")
        elif listed and (found := re.match(r"    (\w[\w, ]*): (.*)", line)):
            yield f"- `{found[1]}`: {found[2]}"
        elif listed and line.startswith("    "):
            yield line[4:] if line.startswith("        ") else line.strip()
        else:
            listed = listed and not line
            yield line
    if example:
        yield "```"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
