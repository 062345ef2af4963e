"""Saves and loads the state of an attachment, alone or inside the state_dict of its optimizer. Checks whose state it is."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import zip_longest
from typing import Any, NamedTuple

from torch import Tensor
from torch.optim import Optimizer

from egalitarian.apply import State, loaded_memory
from egalitarian.checks import check_integer, check_mapping
from egalitarian.distributed import placed
from egalitarian.optimizers.notices import warn_user
from egalitarian.optimizers.until import Setting, Switch
from egalitarian.select import Entry, Plan
from egalitarian.transforms import Transform, is_of_chain

KEY = "egalitarian"
"""The key of an attachment's state in the state_dict of its optimizer. An optimizer without EGD ignores it."""

UNTOLD = (
    "state_dict is from an earlier version, and does not tell which matrices its optimizer held; make sure that it is of "
    "this optimizer, and save it again"
)
Matrices = list[list[str]]
"""Name and shape of each matrix that EGD equalises, or its name and "frozen". A distributed checkpoint keeps it whole."""

_FROZEN = "frozen"
_RETURNED = "load what state_dict() returned"
_COUNTS = ("step", "n_iter")
"""Where optimizers keep how many steps they have made."""
_MEANS = ("momentum_buffer", "exp_avg", "exp_avg_sq")
"""Where optimizers keep means over past gradients."""


class Loaded(NamedTuple):
    """What an attachment's `state_dict()` returned, checked against the attachment that loads it."""

    state: State
    setting: Setting
    tiers: dict[str, str]


def checked(
    state_dict: Mapping[str, Any],
    chain: tuple[Transform, ...],
    plan: Plan,
    held: Matrices,
    memories: Callable[[], Mapping[str, Mapping[str, Tensor]]],
    switch: Switch,
) -> Loaded:
    """The state, checked. The attachment does not change. Warns if EGD stays off by a rule that the attachment lacks.

    Raises:
        TypeError: it is no state.
        ValueError: it is from another transform, of other matrices, from other parameters or for another stack.
    """
    check_mapping("state_dict", state_dict, _RETURNED)
    missing = sorted({"transform", "step", "active", "streak"} - set(state_dict))
    if missing:
        raise ValueError(f"state_dict must come from an attachment, got one without {missing}; {_RETURNED}")
    if not is_of_chain(state_dict["transform"], chain):
        raise ValueError(
            f"state_dict must be from the same transform {chain!r}, got {state_dict['transform']}; "
            f"attach with that transform"
        )
    check_integer("step", state_dict["step"], _RETURNED, least=0)
    tiers, tensors = state_dict.get("tiers", {}), state_dict.get("tensors", {})
    check_mapping("tiers", tiers, _RETURNED)
    check_mapping("tensors", tensors, _RETURNED)
    doubt = _left_open(state_dict, plan, held)
    current = memories()
    memory = {
        name: {key: placed(value, current[name][key]) for key, value in kept.items()}
        for name, kept in loaded_memory(current, tensors).items()
    }
    loaded = Loaded(State(state_dict["step"], memory), switch.checked(state_dict), dict(tiers))
    if doubt and not (doubt == UNTOLD and tensors):  # memories have been compared by name
        warn_user(doubt)
    if switch.stays_off(loaded.setting, state_dict):
        warn_user(
            "EGD was switched off by until= in the saved run and stays off, and this attachment has no such rule; "
            "attach with the same until=, or call on() to use EGD again"
        )
    return loaded


def named_matrices(entries: Iterable[Entry]) -> Matrices:
    """What EGD makes of each matrix among these entries."""
    return [[entry.name, _shape_text(entry)] for entry in entries if entry.taken or entry.frozen]


def _shape_text(entry: Entry) -> str:
    """`"8 x 6"`, `"4 of 8 x 6"` for a stack, with rows in brackets where the parameter is split."""
    texts = []
    for target in entry.targets:
        stack = "" if target.stack is None else f"{target.stack} of "
        texts.append(f"{stack}{target.rows} x {target.columns} {target.name.removeprefix(entry.name)}".rstrip())
    return " + ".join(texts) if entry.taken else _FROZEN


def refuse_others(saved: Matrices, held: Matrices, way_out: str) -> None:
    """Raises if a saved state is of other matrices. One that is frozen, then or now, may join or leave."""
    then, now = _by_name(saved), _by_name(held)
    others = [
        (name, old, new)
        for name in {**then, **now}
        for old, new in zip_longest(then.get(name, ()), now.get(name, ()), fillvalue="not equalised")
        if old != new and _FROZEN not in (old, new)
    ]
    if others:
        texts = [f"{name!r} ({old} then, {new} now)" for name, old, new in others[:3]]
        more = f" and {len(others) - 3} more" if others[3:] else ""
        raise ValueError(
            f"state_dict must be of the matrices that EGD equalises in this optimizer, got one that differs in "
            f"{', '.join(texts)}{more}; load the state of this optimizer, or {way_out}"
        )


def _by_name(matrices: Matrices) -> dict[str, list[str]]:
    """The shapes under each name: several if the optimizer has several plans."""
    shapes: dict[str, list[str]] = {}
    for name, shape in matrices:
        shapes.setdefault(name, []).append(shape)
    return shapes


def checked_matrices(saved: Any) -> Matrices:
    """The matrices of a saved state, if it has them in this form."""
    if not (isinstance(saved, list) and all(_is_pair(each) for each in saved)):
        raise TypeError(f"matrices must be a list of names and shapes, got {saved!r}; {_RETURNED}")
    return saved


def _is_pair(value: Any) -> bool:
    return isinstance(value, list) and len(value) == 2 and all(isinstance(text, str) for text in value)


def _left_open(state_dict: Mapping[str, Any], plan: Plan, held: Matrices) -> str:
    """What a state leaves open about its matrices; empty if nothing. Raises if it is of others.

    States of version 0.1.0 name none. Later ones had the names of the whole plan, whichever the optimizer held.
    """
    way_out = "attach with the plan of the saved run"
    if "matrices" not in state_dict:
        return UNTOLD if held else ""
    saved = state_dict["matrices"]
    if saved and isinstance(saved, list) and all(isinstance(name, str) for name in saved):
        known = {entry.name for entry in plan.entries if entry.taken or entry.frozen}
        refuse_others([[name, "planned"] for name in saved if name not in known], [], way_out)
        equalised = [name for name, text in held if text != _FROZEN]
        if new := [name for name in equalised if name not in saved]:
            return (
                f"state_dict is from an earlier version, and its run did not equalise {new[0]!r}, which this attachment "
                f"does; if that is not meant, {way_out}"
            )
        return "" if len(equalised) == len(saved) else UNTOLD
    refuse_others(checked_matrices(saved), held, way_out)
    return ""


class Carrier:
    """Adds EGD's state to `optimizer.state_dict()`, and restores it in `optimizer.load_state_dict`.

    Args:
        optimizer: the attachment's. Wrappers without hooks, such as Lookahead, save what the optimizer inside them saves.
        carries: whether to do so. If False, the state_dict stays that of the bare optimizer.
        save: the attachment's `state_dict`.
        check: checks a state. If it raises, optimizer and attachment stay as they were.
        restore: gives a checked state to the attachment.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        carries: bool,
        save: Callable[[], dict[str, Any]],
        check: Callable[[Any], Loaded],
        restore: Callable[[Loaded], None],
    ) -> None:
        while not (hooked := hasattr(optimizer, "_optimizer_state_dict_post_hooks")) and hasattr(optimizer, "optimizer"):
            optimizer = optimizer.optimizer
        self._optimizer, self._save, self._check, self._restore = optimizer, save, check, restore
        self._found: Loaded | None = None
        self._lacking = False  # whether the last load had no state of EGD
        self._handles = []
        if carries and hooked:
            self._handles = [
                optimizer.register_state_dict_post_hook(self._add),
                optimizer.register_load_state_dict_pre_hook(self._take),
                optimizer.register_load_state_dict_post_hook(self._give),
            ]

    def _add(self, optimizer: Optimizer, state_dict: dict[str, Any]) -> None:
        state_dict[KEY] = self._save()

    def _take(self, optimizer: Optimizer, state_dict: dict[str, Any]) -> None:
        saved = state_dict.pop(KEY, None)
        try:
            self._found = None if saved is None else self._check(saved)
        except (TypeError, ValueError) as error:
            raise type(error)(f"{error}, or attach with save_with_optimizer=False to start EGD from step 0") from None

    def _give(self, optimizer: Optimizer) -> None:
        self._lacking = self._found is None
        if self._found is not None:
            self._restore(self._found)
        self._found = None

    def remove(self) -> None:
        for handle in self._handles:
            handle.remove()

    def warn_of_lost_state(self) -> None:
        """Warns before EGD's first step if it is not the optimizer's first."""
        if self._lacking or has_stepped(self._optimizer):
            warn_user(
                f"{type(self._optimizer).__name__} continues from earlier steps, but EGD starts at step 0 and switched on: "
                f"its own state was not loaded; attach before optimizer.load_state_dict(...), or load the attachment's "
                f"state_dict. If EGD is meant to start here, call on()"
            )


def has_stepped(optimizer: Optimizer) -> bool:
    """Whether its state shows an earlier step. That of SGD without momentum shows none."""
    return any(map(_counts, _evidence(optimizer)))


def _evidence(optimizer: Optimizer) -> Iterator[Any]:
    """Values that are not zero once an optimizer has made a step; without settings of the same names."""
    for group in optimizer.param_groups:
        counts = (key for key in ("step", "k", "egd_steps") if key in group)
        yield from (group[key] for key in counts if group[key] != optimizer.defaults.get(key))
        for parameter in group["params"]:
            kept = optimizer.state.get(parameter, {})
            yield from [kept[key] for key in _COUNTS if key in kept] or [kept[key] for key in _MEANS if key in kept]


def _counts(value: Any) -> bool:
    return bool(value.any()) if isinstance(value, Tensor) else bool(value)
