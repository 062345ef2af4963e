"""`python -m egalitarian` and the console script: runs the lab, or prints how to install it."""

from __future__ import annotations

import importlib.util
import sys

import egalitarian

LAB_REQUIRES = ("numpy", "scipy", "pandas", "matplotlib", "typer", "rich", "jinja2", "safetensors", "filelock")
USAGE = """\
usage: egalitarian [--version | --help]

egalitarian {version}: egalitarian gradient descent for PyTorch. The library is used from Python:

    import egalitarian as eg
    egd = eg.attach(optimizer, model)

The lab's commands (grok, list, show, run, explore, report, check, toy, bench, tune, data) need {missing}:
    pip install 'egalitarian[lab]'    (in a checkout: pip install '.[lab]')
"""


def main(arguments: list[str] | None = None) -> int:
    arguments = sys.argv[1:] if arguments is None else arguments
    missing = [name for name in LAB_REQUIRES if importlib.util.find_spec(name) is None]
    if not missing:
        try:
            from egalitarian.lab.console import main as lab

            return lab(arguments)
        except KeyboardInterrupt:
            print("Stopped.", file=sys.stderr)
            return 130
    if arguments == ["--version"]:
        print(f"egalitarian {egalitarian.__version__}")
        return 0
    asked_for_help = arguments in ([], ["-h"], ["--help"])
    print(
        USAGE.format(version=egalitarian.__version__, missing=", ".join(missing)),
        file=sys.stdout if asked_for_help else sys.stderr,
    )
    return 0 if asked_for_help else 2


if __name__ == "__main__":
    raise SystemExit(main())
