"""The tier, or precision, of every matrix: what is in effect, what a checkpoint saves, and what the saved run had."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from egalitarian.apply import gradient_dtype
from egalitarian.optimizers.autocast import Autocast
from egalitarian.optimizers.notices import warn_user
from egalitarian.select import Plan
from egalitarian.transforms import MatrixTransform, Site, Transform


class Tiers:
    """The tiers of the matrices that a plan takes, by name."""

    def __init__(self, plan: Plan, chain: Sequence[Transform], autocast: Autocast) -> None:
        self._plan, self._chain, self._autocast = plan, chain, autocast
        self.compute: torch.dtype | None = None
        """The dtype in which gradients are computed, if it is not their own: float16 under a GradScaler."""
        self.saved: dict[str, str] = {}
        """Those of a loaded state, until a warning has compared them."""

    def now(self) -> dict[str, str]:
        """The tiers in effect."""
        return self._with(bool(self._autocast.half))

    def known(self, step: int) -> dict[str, str]:
        """The tiers in effect. Before the first step, tiers that autocast may still change are left out."""
        tiers = self.now()
        unknown = self._autocast.half is None and not step
        other = self._with(half=True) if unknown else tiers
        return {name: tier for name, tier in tiers.items() if other[name] == tier}

    def notes(self) -> dict[str, str]:
        """The notes of the plan on every matrix, with its tier."""
        tiers = self.now()
        return {
            target.name: ", ".join(filter(None, (target.note, tiers.get(target.name)))) for target in self._plan.targets
        }

    def warn_of_others(self) -> None:
        """Warns once if a matrix has another tier than in the saved run."""
        now, saved, self.saved = self.now(), self.saved, {}
        others = [name for name, tier in now.items() if saved.get(name, tier) != tier]
        changed = [f"{name!r} {saved[name]} then, {now[name]} now" for name in others]
        if changed:
            shown = ", ".join(changed[:3]) + ", ..." * (len(changed) > 3)
            warn_user(
                f"the precision differs from that of the saved run: {shown}; to continue as before, attach with "
                f"Polar(precision=...) of that name"
            )

    def _with(self, half: bool) -> dict[str, str]:
        """The tiers if the forward pass runs under autocast to half precision, or if it does not."""
        tiers: dict[str, str] = {}
        for entry in self._plan.taken:
            parameter = entry.parameter
            site = Site("", 0, self.compute or gradient_dtype(parameter), half)
            for link in self._chain:
                if isinstance(link, MatrixTransform):
                    for target in entry.targets:
                        if tier := link.arithmetic(target.rows, target.columns, parameter.device, site):
                            tiers[target.name] = tier
        return tiers
