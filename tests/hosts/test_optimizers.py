"""Other packages' optimizers as hosts: an attached step is one on gradients that `equalize_` equalised, bit for bit."""

from __future__ import annotations

import inspect
import random
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import heavyball
import lion_pytorch
import numpy
import prodigyopt
import pytest
import pytorch_optimizer
import schedulefree
import torch
from torch import Tensor, nn
from torch.optim import SGD, AdamW, Optimizer
from torch.optim.lr_scheduler import ConstantLR
from toy import assert_equalised, batch, loss_of, network, same

import egalitarian as eg

pytestmark = pytest.mark.filterwarnings(
    "ignore::UserWarning:(?!egalitarian)",  # of the hosts
    "ignore::DeprecationWarning:(?!egalitarian)",
    "ignore::FutureWarning:(?!egalitarian)",
)
STEPS = 14
"""Some hosts begin with ten steps that move nothing."""
Build = Callable[[nn.Module], Optimizer]

heavyball.utils.compile_mode = None  # compiling takes minutes and is the host's own affair


def classes(module: ModuleType) -> dict[str, type[Optimizer]]:
    """Every optimizer that a package exports, by `package.Name`."""
    found = inspect.getmembers(module, lambda each: inspect.isclass(each) and issubclass(each, Optimizer))
    return {
        f"{module.__name__}.{name}": each
        for name, each in found
        if each.__module__.split(".")[0] != "torch" and each is not Optimizer
    }


HOSTS = {
    name: each
    for module in (lion_pytorch, schedulefree, prodigyopt, pytorch_optimizer, heavyball)
    for name, each in classes(module).items()
} | {
    f"schedulefree.{each.__name__}": each
    for each in (schedulefree.ScheduleFreeWrapper, schedulefree.ScheduleFreeWrapperReference)
}
"""The last two are no torch optimizers, but have one."""

NOT_RUN = {
    "pytorch_optimizer.DeMo": "needs einops",
    "pytorch_optimizer.SpectralSphere": "takes no vectors",
    "heavyball.PSGDBase": "abstract",
    "heavyball.SOAPBase": "abstract",
}
"""Hosts that cannot train the network of these tests, bare or not."""

WITH_CLOSURE = {
    "schedulefree.AdamWScheduleFreeClosure",
    "schedulefree.RAdamScheduleFreeClosure",
    "schedulefree.SGDScheduleFreeClosure",
    "heavyball.SAMWrapper",
}

APART = {
    "pytorch_optimizer.LOMO": "fused_backward",
    "pytorch_optimizer.AdaLOMO": "fused_backward",
    "pytorch_optimizer.PCGrad": "pc_backward",
    "pytorch_optimizer.SafeFP16Optimizer": "its own backward",
    **{
        f"pytorch_optimizer.{name}": "two steps in one"
        for name in ("SAM", "FriendlySAM", "LookSAM", "WSAM", "BSAM", "GSAM")
    },
}
"""Hosts with another loop: below, each in a test of its own."""


def by_shape(model: nn.Module, name: str) -> list[dict[str, Any]]:
    """Groups for optimizers that treat matrices and vectors differently, by a setting of that name."""
    of = {True: [p for p in model.parameters() if p.ndim > 1], False: [p for p in model.parameters() if p.ndim < 2]}
    return [{"params": params, name: is_matrix} for is_matrix, params in of.items()]


def around(cls: Any) -> Build:
    """A wrapper around AdamW."""
    return lambda model: cls(AdamW(model.parameters(), lr=0.01))


def of_groups(cls: Any) -> Build:
    return lambda model: cls(by_shape(model, "use_muon"), lr=0.01)


BUILT: dict[str, Build] = {
    "schedulefree.ScheduleFreeWrapper": lambda model: schedulefree.ScheduleFreeWrapper(SGD(model.parameters(), lr=0.01)),
    "schedulefree.ScheduleFreeWrapperReference": lambda model: schedulefree.ScheduleFreeWrapperReference(
        SGD(model.parameters(), lr=0.01)
    ),
    "pytorch_optimizer.AdamMini": lambda model: pytorch_optimizer.AdamMini(model, lr=0.01),
    "pytorch_optimizer.AliG": lambda model: pytorch_optimizer.AliG(model.parameters(), max_lr=0.1),
    "pytorch_optimizer.SaRA": lambda model: pytorch_optimizer.SaRA(model.parameters(), lr=0.01, threshold=1.0),
    "pytorch_optimizer.Ranger21": lambda model: pytorch_optimizer.Ranger21(
        model.parameters(), num_iterations=STEPS, lr=0.01
    ),
    "heavyball.SplitOpt": lambda model: heavyball.SplitOpt(
        [
            {"params": each["params"], "optimizer": heavyball.Muon if each["matrix"] else heavyball.AdamW, "lr": 0.01}
            for each in by_shape(model, "matrix")
        ]
    ),
    "heavyball.SAMWrapper": lambda model: heavyball.SAMWrapper(
        model.parameters(), heavyball.SGD(model.parameters(), lr=0.01), ball=0.01
    ),
    **{
        f"pytorch_optimizer.{name}": around(getattr(pytorch_optimizer, name))
        for name in ("Lookahead", "OrthoGrad", "ScheduleFreeWrapper", "TRAC")
    },
    **{
        f"pytorch_optimizer.{name}": of_groups(getattr(pytorch_optimizer, name))
        for name in ("Muon", "MuonClip", "NorMuon", "AdaMuon", "AdaGO", "DistributedMuon")
    },
}

TINY = {"pytorch_optimizer.TRAC"}
"""Its first steps are too small to move a weight in float32."""

SECOND_ORDER = {"pytorch_optimizer.AdaHessian", "pytorch_optimizer.SophiaH"}
"""They differentiate the gradient once more: `backward(create_graph=True)`."""


def seed(number: int) -> None:
    """Seed every generator that hosts draw from: Kron draws NumPy's, SaRA and PCGrad Python's."""
    torch.manual_seed(number)
    numpy.random.seed(number)
    random.seed(number)


def built(name: str, model: nn.Module) -> Optimizer:
    build = BUILT.get(name)
    return build(model) if build else HOSTS[name](model.parameters(), lr=0.01)


def trained(name: str, how: str) -> nn.Module:
    """The network after some steps: `bare`, with EGD `attached`, or with gradients equalised `by hand`."""
    seed(0)
    model = network()
    optimizer = built(name, model)
    plan = eg.matrices(model)
    if how == "attached":
        eg.attach(optimizer, plan)
    if "ScheduleFree" in name and hasattr(optimizer, "train"):
        optimizer.train()
    for step in range(STEPS):

        def closure(step: int = step) -> Tensor:
            optimizer.zero_grad()
            loss = loss_of(model, step)
            loss.backward(create_graph=name in SECOND_ORDER)
            if how == "by hand":
                eg.equalize_(plan)
            return loss

        seed(step)
        if name in WITH_CLOSURE:
            optimizer.step(closure)
        elif name == "pytorch_optimizer.AliG":
            optimizer.step(lambda loss=float(closure()): loss)  # its step size depends on the loss
        else:
            closure()
            optimizer.step()
    return model


@pytest.fixture(autouse=True, scope="module")
def one_process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A process group of one, which distributed optimizers need."""
    store = tmp_path_factory.mktemp("group") / "store"
    torch.distributed.init_process_group("gloo", init_method=f"file://{store}", rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


@pytest.mark.parametrize("name", sorted(set(HOSTS) - set(NOT_RUN) - set(APART)))
def test_an_attached_step_is_the_step_on_equalised_gradients(name: str) -> None:
    by_hand = trained(name, "by hand")
    assert same(trained(name, "attached"), by_hand)
    assert name in TINY or not same(trained(name, "bare"), by_hand)


@pytest.mark.parametrize("name", sorted(NOT_RUN))
def test_what_is_not_run_cannot_be_run(name: str) -> None:
    with pytest.raises((TypeError, ImportError, ValueError)):
        trained(name, "bare")


def test_every_host_is_run_or_named() -> None:
    assert set(NOT_RUN) | set(APART) | set(BUILT) | WITH_CLOSURE | SECOND_ORDER <= set(HOSTS) | {"pytorch_optimizer.PCGrad"}
    assert len(HOSTS) > 170


# -- other loops: two steps in one, several losses, a backward pass of the optimizer's own ----------------------------


def sharpness_aware(name: str, model: nn.Module) -> Any:
    """An optimizer that steps twice, around SGD."""
    cls: Any = getattr(pytorch_optimizer, name)
    options = {"base_optimizer": SGD, "rho": 0.05, "lr": 0.1}
    if name == "WSAM":
        return cls(model, model.parameters(), **options)
    return cls(model.parameters(), **options)


def equalise_by_hand(optimizer: Optimizer, plan: eg.Plan) -> None:
    """As a user does it who knows of torch's hooks alone."""
    optimizer.register_step_pre_hook(lambda *_: eg.equalize_(plan) and None)


@pytest.mark.parametrize("stepping", ["step", "first_step and second_step"])
@pytest.mark.parametrize("name", ["SAM", "FriendlySAM", "LookSAM", "WSAM"])
def test_sharpness_aware_steps_are_equalised_through_their_base_optimizer(name: str, stepping: str) -> None:
    def trained(how: str) -> nn.Module:
        model = network()
        optimizer = sharpness_aware(name, model)
        plan = eg.matrices(model)
        if how == "attached":
            eg.attach(optimizer, plan)
        if how == "by hand":
            equalise_by_hand(optimizer.base_optimizer, plan)
        for step in range(4):

            def backward(step: int = step) -> Tensor:
                optimizer.zero_grad()
                loss = loss_of(model, step)
                loss.backward()
                return loss

            backward()
            if stepping == "step":
                optimizer.step(backward)
            else:
                optimizer.first_step(zero_grad=True)
                backward()
                optimizer.second_step()
        return model

    assert same(trained("attached"), trained("by hand"))
    assert not same(trained("attached"), trained("bare"))


def test_the_step_of_gsam_is_equalised_after_its_decomposition() -> None:
    def trained(how: str) -> nn.Module:
        model = network()
        base = SGD(model.parameters(), lr=0.1)
        rho = pytorch_optimizer.ProportionScheduler(ConstantLR(base, factor=1.0), max_lr=0.1, max_value=0.05)
        optimizer = pytorch_optimizer.GSAM(model.parameters(), base, model, rho)
        plan = eg.matrices(model)
        if how == "attached":
            eg.attach(optimizer, plan)
        if how == "by hand":
            equalise_by_hand(base, plan)
        for step in range(4):
            optimizer.set_closure(nn.functional.cross_entropy, *batch(step))
            optimizer.step()
        return model

    assert same(trained("attached"), trained("by hand"))
    assert not same(trained("attached"), trained("bare"))


def test_bsam_without_a_base_optimizer_has_equalised_gradients_from_its_closure() -> None:
    def trained(how: str) -> nn.Module:
        seed(0)
        model = network()
        optimizer = pytorch_optimizer.BSAM(model.parameters(), num_data=32, lr=0.1)
        plan = eg.matrices(model)
        if how == "attached":
            eg.attach(optimizer, plan)
        for step in range(4):

            def closure(step: int = step, equalised: bool = how == "by hand") -> Tensor:
                optimizer.zero_grad()
                loss = loss_of(model, step)
                loss.backward()
                if equalised:
                    eg.equalize_(plan)
                return loss

            closure(equalised=False)
            seed(step)
            optimizer.step(closure)
        return model

    assert same(trained("attached"), trained("by hand"))
    assert not same(trained("attached"), trained("bare"))


@pytest.mark.parametrize("name", ["LOMO", "AdaLOMO"])
def test_updates_during_the_backward_pass_are_refused(name: str) -> None:
    model = network()
    with pytest.raises((TypeError, ValueError), match="backward"):
        eg.attach(getattr(pytorch_optimizer, name)(model, lr=0.1), model)


def test_several_losses_are_combined_before_they_are_equalised() -> None:
    def trained(how: str) -> nn.Module:
        model = network()
        optimizer = SGD(model.parameters(), lr=0.1)
        wrapped = pytorch_optimizer.PCGrad(optimizer)
        plan = eg.matrices(model)
        if how == "attached":
            eg.attach(wrapped, plan)
        if how == "by hand":
            equalise_by_hand(optimizer, plan)
        for step in range(4):
            wrapped.zero_grad()
            seed(step)
            wrapped.pc_backward([loss_of(model, step), loss_of(model, step + 100)])
            wrapped.step()
        return model

    assert same(trained("attached"), trained("by hand"))
    assert not same(trained("attached"), trained("bare"))


def test_copies_of_the_weights_in_float32_are_not_the_models() -> None:
    """The way out: a plan of the copies, by name."""
    model = network()
    optimizer = pytorch_optimizer.SafeFP16Optimizer(SGD(model.parameters(), lr=0.1))
    with pytest.raises(ValueError, match="optimizer must hold the plan's matrices"):
        eg.attach(optimizer, model)
    copies = dict(zip((name for name, _ in model.named_parameters()), optimizer.fp32_params, strict=True))
    egd = eg.attach(optimizer, eg.matrices(copies, include=["0.weight", "2.weight"]))
    optimizer.backward(loss_of(model))
    before = copies["0.weight"].detach().clone()
    optimizer.step()
    assert egd.state_dict()["step"] == 1
    assert_equalised([before - copies["0.weight"]], 0.1)
