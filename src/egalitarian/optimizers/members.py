"""Matches the parameters in an optimizer with the plan of its attachment, and warns when they differ."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor
from torch.optim import Optimizer

from egalitarian.optimizers.checkpoint import Matrices, named_matrices
from egalitarian.optimizers.engine import Group
from egalitarian.optimizers.host import ignored, misspelt, refuse_differentiable, shown
from egalitarian.optimizers.notices import warn_user
from egalitarian.select import Entry, Plan
from egalitarian.transforms import Transform, uses_matrices


class Members:
    """Describes and checks the parameters in the param groups. `Engine` calls it."""

    def __init__(self, optimizer: Optimizer, plan: Plan, chain: Sequence[Transform], decay_before: float) -> None:
        self._optimizer, self._plan, self._decay_before = optimizer, plan, decay_before
        self._equalizes = uses_matrices(chain)
        self._known = {entry.parameter: entry for entry in plan.entries}
        self._frozen = [entry for entry in plan.left if entry.frozen] if self._equalizes else []
        self._held: dict[Tensor, Entry] = {}
        self._warned: set[str] = set()

    def matrices(self) -> Matrices:
        """The matrices of the plan that the optimizer holds now."""
        held = {parameter for group in self._optimizer.param_groups for parameter in group["params"]}
        return named_matrices(entry for entry in self._plan.entries if entry.parameter in held)

    def describe(self, name: str, parameter: Tensor, group: Group) -> Entry:
        unknown = Entry(name, parameter, tuple(parameter.shape), reason="not in the plan")
        return self._known.get(parameter, unknown)

    def check(self, entries: Sequence[Entry]) -> None:
        groups = self._optimizer.param_groups
        refuse_differentiable(groups)
        for text in (*misspelt(self._optimizer, groups), *ignored(groups, self._decay_before)):
            if text not in self._warned:  # a load makes new groups of the same settings
                self._warned.add(text)
                warn_user(text)
        trained = any(entry.parameter.requires_grad for entry in self._plan.taken)
        if trained and not any(entry.taken for entry in entries):
            raise RuntimeError(
                "the optimizer must hold the plan's matrices, got none of them any more; flat shards (FSDP1, ZeRO) are not "
                "matrices: use FSDP2, DDP or ZeRO stage 0"
            )
        self._report_changes({entry.parameter: entry for entry in entries})

    def _report_changes(self, now: dict[Tensor, Entry]) -> None:
        """Warns if a matrix has left the optimizer, or one has joined that is not in the plan."""
        gone = [entry.name for parameter, entry in self._held.items() if entry.taken and parameter not in now]
        known = self._held | self._known if self._held else now
        unknown = [entry.name for parameter, entry in now.items() if parameter not in known and parameter.ndim >= 2]
        self._held = now
        if self._equalizes:
            _warn(gone, "left the optimizer", _ATTACH_AGAIN)
            _warn(unknown, "joined the optimizer but not the plan: not equalised", _ATTACH_AGAIN)

    def warn_of_unfrozen(self) -> None:
        """Warns once of matrices that were frozen when the plan was made, and have a gradient now."""
        trained = [entry for entry in self._frozen if entry.parameter in self._held]
        unfrozen = [entry.name for entry in trained if entry.parameter.grad is not None]
        if unfrozen:
            self._frozen = []
            way_out = f"plan them from the start, with matrices(model, include=[{unfrozen[0]!r}, ...]), or attach again"
            _warn(unfrozen, "frozen when the plan was made, with a gradient now: not equalised", way_out)


_ATTACH_AGAIN = "for a new plan, remove() EGD and attach again"


def _warn(names: Sequence[str], what: str, way_out: str) -> None:
    if names:
        warn_user(f"{shown(names)} {what}; {way_out}")
