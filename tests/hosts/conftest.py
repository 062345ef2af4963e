"""Tests with real trainers, model zoos and other optimizers: `make test-hosts`. What is missing fails by its name."""

from __future__ import annotations

import importlib.util

import pytest

PACKAGES = (
    "lightning",
    "transformers",
    "accelerate",
    "peft",
    "tensorboard",
    "lion_pytorch",
    "schedulefree",
    "prodigyopt",
    "pytorch_optimizer",
    "heavyball",
)


def pytest_sessionstart(session: pytest.Session) -> None:
    missing = [name for name in PACKAGES if importlib.util.find_spec(name) is None]
    if missing:
        raise pytest.UsageError(f"these tests need {', '.join(missing)}; run them with `make test-hosts`")


def pytest_configure(config: pytest.Config) -> None:
    """Lightning warns where Slurm is installed, as after `make test-cluster`."""
    config.addinivalue_line("filterwarnings", "ignore:The `srun` command is available")
