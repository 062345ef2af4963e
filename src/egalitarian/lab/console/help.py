"""How the commands' help is laid out: paragraphs wrap at the terminal's width, and flags and arguments show no type."""

from __future__ import annotations

from typing import Any

from typer.core import TyperCommand, TyperGroup


def joined(text: str | None) -> str | None:
    """Every paragraph as one line: the line breaks of a docstring are not those of a terminal."""
    return text and "\n\n".join(" ".join(paragraph.split()) for paragraph in text.split("\n\n"))


def untyped(parameters: list[Any]) -> list[Any]:
    """Without `<bool>` after a flag, or `<list[str]>` after an argument, whose name and help say it all."""
    for parameter in parameters:
        if parameter.param_type_name == "argument":
            parameter.display_type_rich = _nothing
        elif parameter.is_flag:
            parameter.metavar = ""
    return parameters


def _nothing(*_: Any, **__: Any) -> None:
    return None


class Command(TyperCommand):
    """One command."""

    def __init__(self, *arguments: Any, help: str | None = None, **settings: Any) -> None:
        super().__init__(*arguments, help=joined(help), **settings)

    def get_params(self, ctx: Any) -> list[Any]:
        return untyped(super().get_params(ctx))


class Group(TyperGroup):
    """All of them."""

    def get_params(self, ctx: Any) -> list[Any]:
        return untyped(super().get_params(ctx))
