"""Other singular values: what each transform promises of them, the library's transforms as special cases, and resuming."""

from __future__ import annotations

import dataclasses
import pickle
from typing import Any

import pytest
import torch
from small import CPU, State, parameters, same, small, together
from torch import Tensor

import egalitarian as eg
from egalitarian.lab.config import Experiment, PowerSettings, SpecError, read
from egalitarian.lab.config.method import TransformSettings
from egalitarian.lab.problems import stream
from egalitarian.lab.training import Ensemble, Stepper
from egalitarian.lab.training.spectra import HalfSpectrum, Power, RandomSpectrum, ReversedSpectrum
from egalitarian.transforms import Site

SITE = Site("hidden.weight", 3, torch.float64)
SHAPES = ((12, 7), (7, 12), (9, 9))
OTHERS = (RandomSpectrum(), RandomSpectrum(fixed=True), HalfSpectrum(), HalfSpectrum(seed=1), ReversedSpectrum())
POWERS = (*map(Power, (0.25, 0.5, 1, 1.5, 2)), Power(0.5, rescaled=True), Power(0, rescaled=True))
each = pytest.mark.parametrize("transform", [*POWERS, *OTHERS], ids=repr)
shaped = pytest.mark.parametrize("shape", SHAPES, ids=str)
CHAINS = ('{name="power",c=0.5}', '{name="random-spectrum"}', '{name="half-spectrum"}', '{name="reversed-spectrum"}')
EXACT = 1e-11
"""Rounding of float64 (2e-16), through an eigendecomposition of squares of singular values down to 1e-2."""


def matrix(shape: tuple[int, int], values: Tensor | None = None, seed: int = 0) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """(U, S, Vᵀ, G): random directions, and values from 1 down to 1e-2."""
    generator = stream(seed, "matrix", *shape)
    U, S, Vh = torch.linalg.svd(torch.randn(shape, generator=generator, dtype=torch.float64), full_matrices=False)
    S = torch.logspace(0, -2, len(S), dtype=torch.float64) if values is None else values
    return U, S, Vh, (U * S) @ Vh


def new_values(transform: Any, shape: tuple[int, int], values: Tensor | None = None, site: Site = SITE) -> Tensor:
    """f(S), and that the directions are those of G: Uᵀ f(G) V is diagonal."""
    U, _, Vh, G = matrix(shape, values)
    core = U.mT @ transform(G, site) @ Vh.mT
    torch.testing.assert_close((U * core.diagonal()) @ Vh, transform(G, site), rtol=EXACT, atol=EXACT * float(core.norm()))
    return core.diagonal()


def close(one: Tensor, other: Tensor, tolerance: float = EXACT) -> None:
    torch.testing.assert_close(one, other, rtol=tolerance, atol=tolerance * float(other.abs().max()))


# ---- powers ----------------------------------------------------------------------------------------------------------


@shaped
@pytest.mark.parametrize("c", [0.25, 0.5, 0.75, 1, 1.25, 1.5, 1.75, 2])
def test_a_power_raises_every_singular_value(c: float, shape: tuple[int, int]) -> None:
    close(new_values(Power(c), shape), matrix(shape)[1] ** (1 - c))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_0_is_the_gradient_bit_for_bit(dtype: torch.dtype) -> None:
    G = torch.randn(8, 5, dtype=dtype)
    assert torch.equal(Power(0)(G, SITE), G)


@shaped
def test_1_is_egd_and_2_the_natural_gradient(shape: tuple[int, int]) -> None:
    G = matrix(shape)[3]
    close(Power(1)(G, SITE), eg.Polar()(G, SITE))
    close(Power(2)(G, SITE), eg.Natural()(G, SITE))
    narrow, site = G.float(), SITE._replace(compute=torch.float32)
    close(Power(1)(narrow, site), eg.Polar()(narrow, site), 1e-6)
    close(Power(2)(narrow, site), eg.Natural()(narrow, site), 1e-6)


@shaped
@pytest.mark.parametrize("c", [0, 0.5, 1, 1.5, 2])
@pytest.mark.parametrize("factor", [1e-30, 0.3, 1e20])
def test_the_scale_of_a_power_is_a_power_of_the_scale(c: float, factor: float, shape: tuple[int, int]) -> None:
    """f(a G) = a^(1-c) f(G)."""
    G = matrix(shape)[3]
    close(Power(c)(factor * G, SITE), factor ** (1 - c) * Power(c)(G, SITE))


@pytest.mark.parametrize("transform", [Power(0.5, rescaled=True), Power(0, rescaled=True), *OTHERS], ids=repr)
@pytest.mark.parametrize("factor", [1e-30, 0.3, 1e20])
def test_the_others_have_the_norm_of_the_polar_factor_whatever_the_scale(transform: Any, factor: float) -> None:
    for shape in SHAPES:
        G = matrix(shape)[3]
        torch.testing.assert_close(float(transform(G, SITE).norm()), min(shape) ** 0.5, rtol=EXACT, atol=0)
        close(transform(factor * G, SITE), transform(G, SITE))


@shaped
def test_a_rescaled_power_is_a_multiple_of_the_power(shape: tuple[int, int]) -> None:
    plain, rescaled = new_values(Power(0.5), shape), new_values(Power(0.5, rescaled=True), shape)
    close(rescaled, plain * (min(shape) ** 0.5 / plain.norm()))
    close(new_values(Power(1, rescaled=True), shape), torch.ones(min(shape), dtype=torch.float64))


# ---- unequal values ------------------------------------------------------------------------------------------------


@shaped
def test_reversed_values_are_the_gradients_in_reverse_order(shape: tuple[int, int]) -> None:
    S = matrix(shape)[1]
    close(new_values(ReversedSpectrum(), shape), S.flip(0) * (min(shape) ** 0.5 / S.norm()))
    close(new_values(ReversedSpectrum(), shape).flip(0), new_values(Power(0, rescaled=True), shape))


@shaped
def test_half_of_the_values_are_equal_and_the_others_zero(shape: tuple[int, int]) -> None:
    rank = min(shape)
    taken = (rank + 1) // 2
    values = new_values(HalfSpectrum(), shape)
    close(values.sort().values, torch.tensor([0.0] * (rank - taken) + [(rank / taken) ** 0.5] * taken).double(), 1e-7)


def test_random_values_are_uniform_and_ignore_the_gradients() -> None:
    """The mean over directions and steps is that of a uniform distribution with a mean square of 1."""
    steps = [new_values(RandomSpectrum(), (40, 40), site=SITE._replace(step=step)) for step in range(20)]
    values = torch.stack(steps)
    assert bool((values > 0).all())
    assert abs(float(values.mean()) - 3**0.5 / 2) < 0.05
    assert float(values.max()) < 2.2
    other = new_values(RandomSpectrum(), (40, 40), values=torch.logspace(2, 0, 40, dtype=torch.float64))
    close(other, new_values(RandomSpectrum(), (40, 40)))


# ---- draws ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [RandomSpectrum, HalfSpectrum])
def test_a_draw_depends_on_seed_name_and_step_alone(kind: Any) -> None:
    G = matrix((30, 20))[3]
    torch.manual_seed(7)
    before, first = torch.get_rng_state(), kind()(G, SITE)
    assert torch.equal(torch.get_rng_state(), before), "torch's own generator is left alone"
    assert torch.equal(kind()(G, SITE), first)
    changed = {
        "seed": kind(seed=1)(G, SITE),
        "name": kind()(G, SITE._replace(name="output.weight")),
        "step": kind()(G, SITE._replace(step=4)),
    }
    for what, other in changed.items():
        assert not torch.allclose(other, first), what
    fixed = kind(fixed=True)
    assert torch.equal(fixed(G, SITE), fixed(G, SITE._replace(step=4)))


# ---- any matrix ----------------------------------------------------------------------------------------------------


@each
@shaped
def test_a_matrix_of_a_stack_is_treated_as_it_is_alone(transform: Any, shape: tuple[int, int]) -> None:
    """Among matrices of other ranks, zeros, and one that is not finite."""
    good = [matrix(shape, seed=seed)[3] for seed in range(3)]
    U, S, Vh, _ = matrix(shape)
    low = (U * S)[:, :3] @ Vh[:3]
    bad = good[0].clone()
    bad[1, 2] = torch.inf
    together = transform(torch.stack([*good, low, torch.zeros_like(low), bad]), SITE)
    for found, own in zip(together, [*good, low], strict=False):
        close(found, transform(own, SITE))
    assert torch.equal(together[4], torch.zeros_like(low))
    assert bool(together[5].isnan().all())


@each
@pytest.mark.parametrize("shape", [(60, 194), (97, 512)], ids=str)
def test_on_a_cpu_a_stack_has_the_bits_of_its_matrices(transform: Any, shape: tuple[int, int]) -> None:
    """At sizes where LAPACK and a batched product take blocks."""
    stack = torch.randn(3, *shape, generator=stream(0, "stack"))
    for found, own in zip(transform(stack, SITE), stack, strict=True):
        assert torch.equal(found, transform(own, SITE))


@each
def test_directions_below_the_cut_off_are_zero(transform: Any) -> None:
    """And they count for no norm: the values are those of the matrix without them."""
    S = torch.tensor([1.0, 0.5, 0.2, 1e-7, 1e-9], dtype=torch.float64)
    full = new_values(transform, (8, 5), values=S)
    assert float(full[3:].abs().max()) < 1e-7 * float(full[:3].max())
    if not isinstance(transform, Power) or transform.rescaled:
        assert abs(float(full.norm()) - 3**0.5) < 1e-6


@pytest.mark.parametrize("c", [0.5, 1, 1.5, 2])
def test_directions_down_to_the_cut_off_are_accurate(c: float) -> None:
    U, S, Vh, G = matrix((64, 24), torch.logspace(0, -5.9, 24, dtype=torch.float64))
    close(Power(c)(G, SITE), (U * S ** (1 - c)) @ Vh, 1e-4)


@each
def test_a_transform_is_a_frozen_value_that_prints_as_it_is_written(transform: Any) -> None:
    assert eval(repr(transform)) == transform
    assert pickle.loads(pickle.dumps(transform)) == transform
    with pytest.raises(dataclasses.FrozenInstanceError):
        transform.c = 0.5


# ---- in the lab ----------------------------------------------------------------------------------------------------


def lab(chain: str) -> Experiment:
    """A small experiment whose method `egd` has this transform of both matrices."""
    return small("addition-97", f"methods.egd.transform=[{chain}]", 'methods.egd.targets=["*.weight"]')


def gradients(ensemble: Ensemble, stepper: Stepper, step: int) -> None:
    ensemble.backward(ensemble.epoch(step // ensemble.batches)[step % ensemble.batches])
    stepper.add_decay()


def trained(chain: str, pause: int | None = None) -> list[State]:
    """Parameters by seed after six steps; with `pause` the method starts again from its state after so many of them."""
    ensemble, stepper = together(lab(chain), "egd", [0, 1])
    for step in range(6):
        if step == pause:
            saved = stepper.states()
            stepper = Stepper(lab(chain).method("egd"), ensemble.parameters)
            stepper.load(saved)
        gradients(ensemble, stepper, step)
        stepper.step()
    return parameters(ensemble)


@pytest.mark.parametrize("chain", CHAINS)
def test_a_resumed_run_is_the_uninterrupted_one(chain: str) -> None:
    for whole, resumed in zip(trained(chain), trained(chain, pause=3), strict=True):
        assert same(whole, resumed)


@pytest.mark.parametrize("chain", CHAINS)
def test_a_seed_of_a_batch_takes_the_steps_that_it_takes_alone(chain: str) -> None:
    """Bit for bit, along the same gradients."""
    experiment = lab(chain)
    ensemble, stepper = together(experiment, "egd", [0, 1, 2])
    own = {name: each.detach().clone()[1:2].requires_grad_() for name, each in ensemble.parameters.items()}
    alone = Stepper(experiment.method("egd"), own)
    for step in range(4):
        gradients(ensemble, stepper, step)
        for name, parameter in own.items():
            parameter.grad = ensemble.parameters[name].grad[1:2].clone()
        stepper.step()
        alone.step()
    for name, parameter in own.items():
        assert torch.equal(ensemble.parameters[name].detach()[1:2], parameter.detach()), name


@pytest.mark.parametrize(
    ("chain", "reason"),
    [*((chain, "another spectrum takes eigenvectors") for chain in CHAINS), ('{name="power",c=0}', "")],
)
def test_a_step_says_why_it_is_not_captured(chain: str, reason: str) -> None:
    stepper = together(lab(chain), "egd", [0])[1]
    assert stepper.synchronises == reason
    transform = stepper._transform(stepper._method.transform[0])
    assert bool(transform.why_eager(9, 7, torch.float32, CPU, SITE)) == bool(reason)


def test_settings_out_of_range_are_refused() -> None:
    assert read(TransformSettings, {"name": "power", "c": 1}) == PowerSettings(c=1.0)
    with pytest.raises(SpecError, match=r"c must be >= 0 and <= 2, got 2\.5"):
        PowerSettings(c=2.5)
