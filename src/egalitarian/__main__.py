"""`python -m egalitarian` and the console script: hands over to the lab, or says how to get it."""

from __future__ import annotations

import importlib.util
import sys

import egalitarian

LAB_REQUIRES = ("numpy", "scipy", "pandas", "matplotlib", "typer", "rich", "jinja2", "safetensors")
USAGE = """\
usage: egalitarian [--version | --help]

egalitarian {version}: egalitarian gradient descent for PyTorch. The library is used from Python:

    import egalitarian as eg
    egd = eg.attach(optimizer, model)
"""


def main(arguments: list[str] | None = None) -> int:
    arguments = sys.argv[1:] if arguments is None else arguments
    if arguments == ["--version"]:
        print(f"egalitarian {egalitarian.__version__}")
        return 0
    asked_for_help = arguments in ([], ["-h"], ["--help"])
    out = sys.stdout if asked_for_help else sys.stderr
    print(USAGE.format(version=egalitarian.__version__), file=out)
    if not asked_for_help:
        print(f"egalitarian: this version has no command {arguments[0]!r}.", file=out)
    print("The lab's commands (grok, run, report) come with a later version.", file=out)
    missing = [name for name in LAB_REQUIRES if importlib.util.find_spec(name) is None]
    if missing:
        print(f"They will need {', '.join(missing)}:\n    pip install 'egalitarian[lab]'", file=out)
    return 0 if asked_for_help else 2


if __name__ == "__main__":
    raise SystemExit(main())
