"""A state names the matrices that EGD equalises in its optimizer; one of another optimizer or plan is refused."""

from __future__ import annotations

import copy
import io
import json
import pickle
import re
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from toy import network, same, train

import egalitarian as eg

REFUSED = "must be of the matrices that EGD equalises in this optimizer, got one that differs in "
UNTOLD = "from an earlier version, and does not tell which matrices its optimizer held"
Load = Callable[[Any, Any], None]


def by_the_optimizer(source: eg.Attachment, to: eg.Attachment) -> None:
    to.optimizer.load_state_dict(source.optimizer.state_dict())


def by_the_attachment(source: eg.Attachment, to: eg.Attachment) -> None:
    to.load_state_dict(source.state_dict())


def through(value: Any) -> Any:
    file = io.BytesIO()
    torch.save(value, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


def through_a_file(source: eg.Attachment, to: eg.Attachment) -> None:
    to.optimizer.load_state_dict(through(source.optimizer.state_dict()))


def through_pickle_and_json(source: eg.Attachment, to: eg.Attachment) -> None:
    to.load_state_dict(json.loads(json.dumps(pickle.loads(pickle.dumps(copy.deepcopy(source.state_dict()))))))


LOADS: list[Load] = [by_the_optimizer, by_the_attachment, through_a_file, through_pickle_and_json]


def attached(parameters: Any, model: Any, *chain: Any, **options: Any) -> eg.Attachment:
    return eg.attach(torch.optim.SGD(parameters, lr=0.1), model, *chain, **options)


class Halves(nn.Module):
    """Two optimizers of one model, as in a GAN."""

    def __init__(self) -> None:
        super().__init__()
        self.generator, self.critic = network(0), network(1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        value: torch.Tensor = self.generator(x) + self.critic(x)
        return value


def halves() -> tuple[eg.Attachment, eg.Attachment]:
    model = Halves()
    return tuple(attached(part.parameters(), model) for part in (model.generator, model.critic))  # type: ignore[return-value]


def test_a_state_names_what_its_optimizer_holds_of_the_plan() -> None:
    generator, critic = halves()
    for name, egd in (("generator", generator), ("critic", critic)):
        assert egd.state_dict()["matrices"] == [[f"{name}.0.weight", "8 x 6"], [f"{name}.2.weight", "5 x 8"]]
        assert egd.optimizer.state_dict()["egalitarian"]["matrices"] == egd.state_dict()["matrices"]


@pytest.mark.parametrize("load", LOADS)
def test_two_optimizers_of_a_model_refuse_the_state_of_each_other(load: Load) -> None:
    (generator, critic), others = halves(), halves()
    generator.off()
    with pytest.raises(ValueError, match=re.escape(f"{REFUSED}'generator.0.weight' (8 x 6 then, not equalised now), ")):
        load(generator, others[1])
    assert others[1].active
    with pytest.raises(
        ValueError, match=r"'critic\.2\.weight' .* and 1 more; load the state of this optimizer, or attach with"
    ):
        load(critic, others[0])
    for one, other in zip((generator, critic), others, strict=True):
        load(one, other)
    assert (others[0].active, others[1].active) == (False, True)


def test_the_loop_of_a_gan_resumes_with_its_own_states_alone() -> None:
    saved: list[dict[str, Any]] = []
    for resumed in (False, True):
        generator, critic = (
            network(0),
            nn.Sequential(nn.Linear(3, 7), nn.Tanh(), nn.Linear(7, 4), nn.Tanh(), nn.Linear(4, 1)),
        )
        egds = [attached(part.parameters(), part) for part in (generator, critic)]
        if resumed:
            with pytest.raises(ValueError, match=re.escape("'0.weight' (7 x 3 then, 8 x 6 now)")):
                egds[0].optimizer.load_state_dict({**saved[1], "egalitarian": saved[1]["egalitarian"]})
            for egd, state in zip(egds, saved, strict=True):
                egd.optimizer.load_state_dict(state)
        for egd in (egds[1], egds[0]) * 2:
            egd.optimizer.zero_grad()
            critic(generator(torch.ones(4, 6))).sum().backward()
            egd.optimizer.step()
        saved = [egd.optimizer.state_dict() for egd in egds]
    assert [egd.state_dict()["step"] for egd in egds] == [4, 4]


@pytest.mark.parametrize("load", LOADS)
@pytest.mark.parametrize(("then", "now"), [(["0.*"], ["0.*", "2.*"]), (["0.*", "2.*"], ["0.*"]), (["0.*"], ["2.*"])])
def test_another_plan_is_refused(load: Load, then: list[str], now: list[str]) -> None:
    """Overlapping and disjoint matrices of optimizers that hold the same parameters."""
    one, other = (network(), network())
    first = attached(one.parameters(), eg.matrices(one, include=then))
    second = attached(other.parameters(), eg.matrices(other, include=now))
    with pytest.raises(ValueError, match=f"{REFUSED}'[02].weight'"):
        load(first, second)
    load(first, attached(other.parameters(), eg.matrices(other, include=then)))


def test_another_split_of_a_weight_is_refused() -> None:
    one, other = network(), network()
    first = attached(one.parameters(), eg.matrices(one, split={"0.weight": [4, 4]}))
    second = attached(other.parameters(), other)
    text = "'0.weight' (4 x 6 [0:4] + 4 x 6 [4:8] then, 8 x 6 now)"
    with pytest.raises(ValueError, match=re.escape(text)):
        second.load_state_dict(first.state_dict())


def test_a_stack_has_its_length_in_the_state() -> None:
    weights = {"w": nn.Parameter(torch.zeros(4, 3, 2))}
    egd = attached(weights.values(), eg.matrices(weights, include="w", stack=True))
    assert egd.state_dict()["matrices"] == [["w", "4 of 3 x 2"]]


@pytest.mark.parametrize("load", LOADS)
@pytest.mark.parametrize("frozen_first", [True, False])
def test_a_layer_that_is_frozen_then_or_now_may_differ(load: Load, frozen_first: bool) -> None:
    """As in fine-tuning: the optimizer holds all layers, and equalises those that are trained."""
    models = [network(), network()]
    models[not frozen_first][0].requires_grad_(False)
    first, second = (attached(model.parameters(), model) for model in models)
    if frozen_first:
        assert first.state_dict()["matrices"] == [["0.weight", "frozen"], ["2.weight", "5 x 8"]]
    train(models[0], first.optimizer, 2)
    load(first, second)
    assert second.state_dict()["step"] == 2


def test_a_frozen_layer_of_another_optimizer_is_no_excuse() -> None:
    """While one half trains, the other is often frozen, and its optimizer does not hold it."""
    states = []
    model = Halves()
    for trained, other in ((model.generator, model.critic), (model.critic, model.generator)):
        trained.requires_grad_(True)
        other.requires_grad_(False)
        states.append(attached(trained.parameters(), model))
    with pytest.raises(ValueError, match=REFUSED):
        states[1].load_state_dict(states[0].state_dict())


def test_a_matrix_that_joins_with_its_group_is_named_from_then_on() -> None:
    def begin(groups: int) -> tuple[nn.Module, eg.Attachment]:
        model = network()
        egd = attached([*model[2].parameters(), *model[4].parameters()], model)
        if groups == 2:
            egd.optimizer.add_param_group({"params": list(model[0].parameters())})
        return model, egd

    model, egd = begin(1)
    assert egd.state_dict()["matrices"] == [["2.weight", "5 x 8"]]
    egd.optimizer.add_param_group({"params": list(model[0].parameters())})
    train(model, egd.optimizer, 2)
    _, alike = begin(2)
    alike.optimizer.load_state_dict(egd.optimizer.state_dict())
    assert alike.state_dict()["step"] == 2
    with pytest.raises(ValueError, match=re.escape(f"{REFUSED}'0.weight' (8 x 6 then, not equalised now); ")):
        begin(1)[1].load_state_dict(egd.state_dict())


class _Net(nn.Module):
    def __init__(self, tied: bool) -> None:
        super().__init__()
        self.first, self.second, self.head = nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 3)
        if tied:
            self.second.weight = self.first.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        value: torch.Tensor = self.head(self.second(self.first(x)))
        return value


def test_tied_weights_are_one_matrix() -> None:
    tied, alike, untied = (_Net(tied) for tied in (True, True, False))
    first = attached(tied.parameters(), tied)
    assert first.state_dict()["matrices"] == [["first.weight", "6 x 6"]]
    attached(alike.parameters(), alike).load_state_dict(first.state_dict())
    with pytest.raises(ValueError, match=re.escape("'second.weight' (not equalised then, 6 x 6 now)")):
        attached(untied.parameters(), untied).load_state_dict(first.state_dict())


@pytest.mark.parametrize("load", LOADS)
def test_wrapping_the_model_does_not_matter(load: Load) -> None:
    """`module.` of DataParallel, `_orig_mod.` of compile."""
    wrappers: list[Any] = [lambda model: model, nn.DataParallel, torch.compile]
    for then in wrappers:
        for now in wrappers:
            one, other = then(network()), now(network())
            load(attached(one.parameters(), one), attached(other.parameters(), other))


@pytest.mark.parametrize("chain", [[eg.GrokfastEMA()], [eg.GrokfastEMA(), eg.Polar()], [eg.Identity()]])
def test_filters_have_the_same_law(chain: Any) -> None:
    model = Halves()
    generator, critic = (attached(part.parameters(), model, chain) for part in (model.generator, model.critic))
    train(model, generator.optimizer, 1)
    with pytest.raises(ValueError, match=REFUSED):
        critic.optimizer.load_state_dict(generator.optimizer.state_dict())
    twin = Halves()
    same = attached(twin.generator.parameters(), twin, chain)
    same.optimizer.load_state_dict(generator.optimizer.state_dict())
    assert same.state_dict()["step"] == 1


def test_a_distributed_checkpoint_of_another_optimizer_is_refused(tmp_path: Path) -> None:
    """A load fills the keys of the state that it is given; the list of matrices is replaced as a whole."""
    from torch.distributed import checkpoint

    generator, (generator_again, critic_again) = halves()[0], halves()
    generator.off()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # those of torch, without a process group
        checkpoint.save({"egd": generator.state_dict()}, checkpoint_id=tmp_path / "saved")
        for egd, refused in ((critic_again, True), (generator_again, False)):
            state = {"egd": egd.state_dict()}
            checkpoint.load(state, checkpoint_id=tmp_path / "saved")
            if refused:
                with pytest.raises(ValueError, match=REFUSED):
                    egd.load_state_dict(state["egd"])
            else:
                egd.load_state_dict(state["egd"])
    assert (generator_again.active, critic_again.active) == (False, True)


@pytest.mark.parametrize("order", ["model first", "optimizer first"])
@pytest.mark.parametrize("door", ["attach first", "attach last"])
def test_the_order_of_loads_does_not_matter(order: str, door: str) -> None:
    """The matrices are those of the groups, whatever values their parameters have."""
    model = network()
    egd = attached(model.parameters(), model)
    train(model, egd.optimizer, 2)
    saved = through(model.state_dict()), through(egd.optimizer.state_dict())
    twin = network(1)
    optimizer = torch.optim.SGD(twin.parameters(), lr=0.5)
    again = eg.attach(optimizer, twin) if door == "attach first" else None
    loads = [lambda: twin.load_state_dict(saved[0]), lambda: optimizer.load_state_dict(saved[1])]
    for load in loads if order == "model first" else reversed(loads):
        load()
    if again is None:
        again = eg.attach(optimizer, twin)
        again.load_state_dict(saved[1]["egalitarian"])
    assert again.state_dict()["step"] == 2
    train(model, egd.optimizer, 2, start=2)
    train(twin, optimizer, 2, start=2)
    assert same(model, twin)


# -- states of earlier versions ------------------------------------------------------------------------------------------


def older(egd: eg.Attachment, version: str) -> dict[str, Any]:
    state = egd.state_dict()
    names = {"matrices": [entry.name for entry in egd.plan.taken]} if version == "whole plan" else {}
    return {key: value for key, value in state.items() if key != "matrices"} | names


@pytest.mark.parametrize("version", ["no names", "whole plan"])
@pytest.mark.parametrize("filters", [False, True])
def test_a_state_of_an_earlier_version_warns_where_it_does_not_tell(version: str, filters: bool) -> None:
    """Memories are named, and an optimizer that holds the whole plan is the one that the plan tells of."""
    chain: Any = [eg.GrokfastEMA(), eg.Polar()] if filters else eg.Polar()
    whole, again = network(), network()
    part, part_again = Halves(), Halves()
    for one, other, told in (
        (attached(whole.parameters(), whole, chain), attached(again.parameters(), again, chain), version == "whole plan"),
        (
            attached(part.critic.parameters(), part, chain),
            attached(part_again.critic.parameters(), part_again, chain),
            False,
        ),
    ):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            other.load_state_dict(older(one, version))
        assert [UNTOLD in str(each.message) for each in caught] == [] if told or filters else [True]


def test_a_state_of_an_earlier_version_is_refused_where_it_contradicts_the_plan() -> None:
    one, other = network(), nn.Sequential(nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3)), nn.Linear(3, 3))
    first, second = attached(one.parameters(), one), attached(other.parameters(), other)
    first.off()
    with pytest.raises(ValueError, match=re.escape(f"{REFUSED}'0.weight' (planned then, not equalised now), ")):
        second.load_state_dict(older(first, "whole plan"))
    assert second.active


@pytest.mark.parametrize("filters", [False, True])
def test_a_state_of_an_earlier_version_says_what_was_not_equalised(filters: bool) -> None:
    """Filters have memories of every parameter, also of those that were not equalised."""
    chain: Any = [eg.Momentum(), eg.Polar()] if filters else eg.Polar()
    model, other = network(), network()
    first = attached(model.parameters(), model, chain)
    train(model, first.optimizer, 1)
    whole = attached(other.parameters(), eg.matrices(other, head=None), chain)
    with pytest.warns(
        UserWarning, match=r"its run did not equalise '4\.weight', which this attachment does; if that is not"
    ):
        whole.load_state_dict(older(first, "whole plan"))
    assert whole.state_dict()["step"] == 1


def test_where_warnings_are_errors_an_earlier_state_changes_nothing() -> None:
    one, other = halves()
    one.off()
    with pytest.raises(UserWarning, match=UNTOLD):
        other.load_state_dict(older(one, "whole plan"))
    assert other.active


@pytest.mark.parametrize("matrices", [[], [["0.weight", "8 x 6"]], [["0.weight", "8 x 6"], ["2.weight", "8 x 5"]]])
def test_a_list_of_matrices_that_was_edited_is_refused(matrices: Any) -> None:
    model = network()
    egd = attached(model.parameters(), model)
    with pytest.raises(ValueError, match=REFUSED):
        egd.load_state_dict({**egd.state_dict(), "matrices": matrices})


# -- EGD, the optimizer --------------------------------------------------------------------------------------------------


def test_egd_refuses_the_state_of_other_matrices() -> None:
    model = Halves()
    names = [f"{half}.{layer}.weight" for half in ("generator", "critic") for layer in (0, 2)]
    plans = [eg.matrices(model, include=names[:2]), eg.matrices(model, include=names[2:])]
    one, other = (eg.EGD(plan, lr=0.1) for plan in plans)
    before = copy.deepcopy(other.state_dict())
    with pytest.raises(ValueError, match=re.escape(f"{REFUSED}'generator.0.weight' (8 x 6 then, not equalised now)")):
        other.load_state_dict(one.state_dict())
    assert other.state_dict() == before
    again = eg.EGD(eg.matrices(Halves(), include=names[:2]), lr=0.1)
    again.load_state_dict(one.state_dict())


def test_egd_without_a_plan_tells_matrices_by_position_and_shape() -> None:
    def begin(rows: int) -> eg.EGD:
        return eg.EGD([nn.Parameter(torch.zeros(rows, 6)), nn.Parameter(torch.zeros(rows))], lr=0.1)

    begin(8).load_state_dict(begin(8).state_dict())
    with pytest.raises(ValueError, match=re.escape("'param_groups[0].params[0]' (8 x 6 then, 5 x 6 now); load")):
        begin(5).load_state_dict(begin(8).state_dict())


def test_egd_loads_a_group_that_was_added_later_and_settings_of_groups() -> None:
    def begin(equalize: bool) -> eg.EGD:
        model = network()
        optimizer = eg.EGD(eg.matrices(model[:3], head=None).groups(), lr=0.1)
        optimizer.add_param_group({"params": list(model[4].named_parameters("head")), "equalize": equalize})
        return optimizer

    optimizer = begin(True)
    optimizer.load_state_dict(begin(False).state_dict())
    assert optimizer.param_groups[-1]["equalize"] is False


@pytest.mark.parametrize("frozen_first", [True, False])
def test_a_frozen_layer_may_differ_for_egd(frozen_first: bool) -> None:
    models = [network(), network()]
    models[not frozen_first][0].requires_grad_(False)
    first, second = (eg.EGD(eg.matrices(model), lr=0.1) for model in models)
    second.load_state_dict(first.state_dict())


def test_a_checkpoint_of_egd_of_an_earlier_version_loads_and_warns_where_it_names_other_parameters() -> None:
    def without(state: dict[str, Any]) -> dict[str, Any]:
        return {key: value for key, value in state.items() if key != "egd_matrices"}

    model = network()
    optimizer = eg.EGD(eg.matrices(model), lr=0.1)
    eg.EGD(eg.matrices(network()), lr=0.1).load_state_dict(without(optimizer.state_dict()))
    halved = eg.EGD(eg.matrices(Halves().critic), lr=0.1)
    halved.load_state_dict(without(optimizer.state_dict()))  # names within that half are alike
    renamed = eg.EGD(eg.matrices(nn.ModuleDict({"body": network()})), lr=0.1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # EGD without a plan
        bare = eg.EGD(network().parameters(), lr=0.1)
    for egd in (renamed, bare):
        with pytest.warns(UserWarning, match=UNTOLD):
            egd.load_state_dict(without(optimizer.state_dict()))


def test_matrices_of_one_name_in_several_plans_are_compared_one_by_one() -> None:
    """As where one EGD trains two networks whose layers have the same names."""

    def begin(*inputs: int) -> eg.EGD:
        models = [nn.Sequential(nn.Linear(width, 5), nn.Tanh(), nn.Linear(5, 2)) for width in inputs]
        return eg.EGD([group for model in models for group in eg.matrices(model).groups()], lr=0.1)

    saved = begin(3, 4).state_dict()
    begin(3, 4).load_state_dict(saved)
    with pytest.raises(ValueError, match=re.escape("differs in '0.weight' (5 x 3 then, 5 x 7 now); ")):
        begin(7, 4).load_state_dict(saved)


def test_egd_loads_plain_sgd_and_sgd_loads_egd() -> None:
    model = network()
    plain, optimizer = torch.optim.SGD(model.parameters(), lr=0.1), eg.EGD(eg.matrices(model), lr=0.1)
    optimizer.load_state_dict(plain.state_dict())
    plain.load_state_dict(optimizer.state_dict())
    with pytest.raises(TypeError, match="matrices must be a list of names and shapes, got 3; load what"):
        optimizer.load_state_dict({**optimizer.state_dict(), "egd_matrices": 3})
