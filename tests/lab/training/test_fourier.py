"""Fourier measures: against slow twins with explicit loops, on networks made of waves, and under shifts."""

from __future__ import annotations

import math
from itertools import product

import pytest
import torch
from small import CPU, small
from torch import Tensor

from egalitarian.lab.config import FOURIER, Experiment, SpecError, is_snapshot
from egalitarian.lab.problems import Group, Modular, stream
from egalitarian.lab.problems.groups import Operation
from egalitarian.lab.training import Ensemble, FullMeter, Stepper, train
from egalitarian.lab.training.fourier import (
    Fourier,
    concentration,
    excluded_logits,
    excluded_loss,
    fourier_power,
    key_frequencies,
    logit_scale,
    restricted_logits,
    restricted_loss,
)
from egalitarian.lab.training.metrics import cross_entropy, one_hot_squared_error

GROUPS = [
    *(Group(operation, modulus) for operation in ("+", "-") for modulus in (2, 3, 7, 12)),
    *(Group(operation, modulus) for operation in ("*", "/") for modulus in (3, 5, 11)),
]
ADDITION, PRODUCT = Group("+", 13), Group("*", 13)


def gaussian(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=stream(seed, "fourier"), dtype=torch.float64)


def wave(group: Group, frequency: int, log: int, phase: float = 0.0) -> float:
    return math.cos(2 * math.pi * frequency * log / group.size + phase)


def pure_logits(group: Group, frequencies: list[int], scale: float = 5.0) -> Tensor:
    """Logits sum_k cos(2 pi k (t - c) / size), largest at the answer, of one seed."""
    found = torch.zeros(1, group.size, group.size, group.modulus, dtype=torch.float64)
    for s, t, c in product(range(group.size), repeat=3):
        away = int(group.answers[s, t]) - c
        found[0, s, t, group.elements[c]] = scale * sum(wave(group, k, away) for k in frequencies)
    return found


# power


def slow_power(weight: Tensor, group: Group) -> list[float]:
    """By sums of products with cosines and sines over the group, row by row and block by block."""
    powers = []
    for k in range(1, group.frequencies + 1):
        total = 0.0
        for row in weight:
            for block in row.split(group.modulus):
                own = [float(block[element]) for element in group.elements]
                for phase in (0.0, -math.pi / 2):
                    basis = [wave(group, k, t, phase) for t in range(group.size)]
                    length = math.sqrt(sum(value**2 for value in basis))
                    if length > 1e-9:  # the sine of the last frequency of an even size is 0
                        total += (sum(x * y for x, y in zip(own, basis, strict=True)) / length) ** 2
        powers.append(total)
    return [value / sum(powers) for value in powers]


@pytest.mark.parametrize("blocks", [1, 2])
@pytest.mark.parametrize("group", GROUPS, ids=str)
def test_power_equals_its_slow_twin(group: Group, blocks: int) -> None:
    weight = gaussian(3, 4, blocks * group.modulus)
    power = fourier_power(weight, group)
    assert power.shape == (3, group.frequencies)
    for own, shares in zip(weight, power, strict=True):
        torch.testing.assert_close(shares, torch.tensor(slow_power(own, group), dtype=torch.float64))


@pytest.mark.parametrize("group", [ADDITION, PRODUCT, Group("-", 12), Group("/", 7)], ids=str)
def test_a_weight_of_one_wave_has_all_its_power_there(group: Group) -> None:
    for k in range(1, group.frequencies + 1):
        weight = torch.zeros(2, 2 * group.modulus)
        for t, element in enumerate(group.elements.tolist()):
            weight[:, element] = 3 + 2 * wave(group, k, t, phase=0.3)
            weight[:, group.modulus + element] = wave(group, k, t, phase=1.1)
        power = fourier_power(weight, group)
        assert power[k - 1] > 1 - 1e-12
        assert concentration(power).item() == pytest.approx(1 - 1 / group.frequencies)


def test_a_wave_of_sums_is_spread_over_the_frequencies_of_products() -> None:
    """The Fourier basis of multiplication is over logarithms: the wrong basis would show no structure."""
    weight = torch.tensor([[wave(ADDITION, 3, number) for number in range(13)]])
    assert fourier_power(weight, ADDITION).max() > 1 - 1e-12
    assert fourier_power(weight, PRODUCT).max() < 0.7


def test_random_weights_are_flat() -> None:
    odd, even = fourier_power(gaussian(4000, 13), ADDITION), fourier_power(gaussian(4000, 13), PRODUCT)
    torch.testing.assert_close(odd, torch.full((6,), 1 / 6, dtype=torch.float64), rtol=0.1, atol=0)
    expected = torch.tensor([2.0] * 5 + [1.0], dtype=torch.float64) / 11  # the last has no sine
    torch.testing.assert_close(even, expected, rtol=0.1, atol=0)
    assert concentration(odd) < 0.05


@pytest.mark.parametrize("group", [ADDITION, PRODUCT], ids=str)
def test_power_does_not_change_under_shifts_and_scales(group: Group) -> None:
    """a -> a + 1, or a -> a g: the group's own moves of the numbers. And a constant for every row, and a scale."""
    weight = gaussian(3, 5, 13)
    moved = weight.clone()
    moved[..., group.elements] = weight[..., group.elements.roll(1)]
    expected = fourier_power(weight, group)
    for other in (moved, 1e200 * weight, 1e-200 * weight, -weight, weight + gaussian(3, 5, 1, seed=1)):
        torch.testing.assert_close(fourier_power(other, group), expected)


def test_seeds_do_not_touch_each_other_and_what_has_no_power_has_no_shares() -> None:
    weight = gaussian(5, 1, 26)
    expected = fourier_power(weight[:1], ADDITION)
    weight[1, 0, 5], weight[2, 0, 5], weight[3], weight[4] = math.nan, math.inf, 0, 0.1
    power = fourier_power(weight, ADDITION)
    assert torch.equal(power[:1], expected)
    assert power[1:].isnan().all()
    assert concentration(power)[1:].isnan().all()


@pytest.mark.parametrize("shape", [(3, 14), (13,), (3, 0)])
def test_a_weight_of_another_shape_is_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=r"^weight must be .*, got \(.*; pass "):
        fourier_power(torch.zeros(shape), ADDITION)


def test_known_concentrations() -> None:
    """Against the definition: half the mean difference of pairs, over the mean."""
    rows = torch.tensor([[1, 1, 1, 1], [0, 0, 0, 7], [1, 2, 3, 4], [0, 0, 1, 1]], dtype=torch.float64)
    expected = [float((row[:, None] - row).abs().mean() / 2 / row.mean()) for row in rows]
    assert concentration(rows).tolist() == pytest.approx(expected)
    assert expected[:2] == [0, 0.75]
    assert concentration(torch.tensor([1.0])) == 0


# logits


def slow_restricted(logits: Tensor, group: Group, key: list[int]) -> Tensor:
    """The projection of one seed's table on a constant and waves of the answer, one after the other."""
    found = torch.zeros_like(logits)
    bases = [(0, 0.0), *((k, phase) for k in key for phase in (0.0, -math.pi / 2))]
    for k, phase in bases:
        basis = torch.tensor([[wave(group, k, int(answer), phase) for answer in row] for row in group.answers]).double()
        if (length := basis.norm()) > 1e-9:
            found += (basis[..., None] / length) * ((basis / length)[..., None] * logits).sum((0, 1))
    return found


@pytest.mark.parametrize("group", GROUPS, ids=str)
def test_restricted_and_excluded_logits_equal_their_slow_twins(group: Group) -> None:
    logits = gaussian(2, group.size, group.size, group.modulus)
    key = key_frequencies(logits, group, max(1, group.frequencies // 2))
    restricted, excluded = restricted_logits(logits, group, key), excluded_logits(logits, group, key)
    for seed in range(2):
        slow = slow_restricted(logits[seed], group, key[seed].tolist())
        torch.testing.assert_close(restricted[seed][group.answers], slow)
        constant = logits[seed].mean((0, 1))
        torch.testing.assert_close(excluded[seed], logits[seed] - slow + constant)


@pytest.mark.parametrize("group", [ADDITION, PRODUCT, Group("-", 12), Group("/", 13)], ids=str)
def test_a_network_of_waves_is_its_key_frequencies(group: Group) -> None:
    """Restricted to them it is the same; without them it knows nothing, so that its loss is that of a guess."""
    logits = pure_logits(group, [2, 5])
    logits[..., 0] -= 50 * (group.size < group.modulus)  # in a product of numbers, 0 is no answer
    key = key_frequencies(logits, group, 2)
    assert key.tolist() == [[2, 5]]
    labels = group.elements[group.answers]
    own = torch.nn.functional.cross_entropy(logits.flatten(0, 2), labels.flatten())
    torch.testing.assert_close(restricted_loss(logits, group, key), own[None])
    torch.testing.assert_close(excluded_loss(logits, group, key), torch.tensor([math.log(group.size)]).double())


def test_what_is_memorised_is_excluded_from_restricted_logits_and_stays_in_excluded_ones() -> None:
    """A table that is right on the training pairs alone: hardly any of it is a wave of the answer."""
    group = Group("+", 23)
    train = torch.rand(1, 23, 23, generator=stream(0, "pairs")) < 0.3
    labels = group.elements[group.answers]
    memory = torch.nn.functional.one_hot(labels, 23) * train[..., None] * 20.0
    key = key_frequencies(memory, group, 3)
    assert excluded_loss(memory, group, key, train) < 1e-3
    assert restricted_loss(memory, group, key) > 1
    everything = torch.arange(1, 12)[None]
    assert restricted_loss(memory, group, everything) < 0.5, "with many keys it counts as waves: docs/lab.md"
    both = memory + pure_logits(group, [1, 4, 9])
    assert restricted_loss(both, group, key_frequencies(both, group, 3)) < 0.01


def test_excluded_loss_is_over_the_pairs_of_each_seed() -> None:
    logits, group = gaussian(3, 7, 7, 7), Group("-", 7)
    train = torch.rand(3, 7, 7, generator=stream(0, "pairs")) < 0.5
    key = key_frequencies(logits, group, 2)
    table, labels = excluded_logits(logits, group, key), group.elements[group.answers]
    for loss in (cross_entropy, one_hot_squared_error):
        slow = []
        for seed in range(3):
            pairs = [pair for pair in product(range(7), repeat=2) if train[seed][pair]]
            each = [loss(table[seed][pair][None, None], labels[pair][None, None]) for pair in pairs]
            slow.append(torch.cat(each).mean())
        torch.testing.assert_close(excluded_loss(logits, group, key, train, loss), torch.stack(slow))


def test_tokens_that_are_no_answers_and_the_order_of_numbers_do_not_matter() -> None:
    """A transformer has two logits more. Adding a number to a shifts the phases of waves, and no loss."""
    group, logits = ADDITION, gaussian(2, 13, 13, 13) + pure_logits(ADDITION, [2, 3], 1.0)
    more = torch.cat([logits, torch.full((2, 13, 13, 2), -100.0)], -1)
    key = key_frequencies(logits, group, 2)
    torch.testing.assert_close(restricted_loss(more, group, key), restricted_loss(logits, group, key))
    shifted = logits.roll(4, 1).roll(4, 3)  # a + 4, and the answer + 4
    assert torch.equal(key_frequencies(shifted, group, 2), key)
    for loss in (restricted_loss, excluded_loss):
        torch.testing.assert_close(loss(shifted, group, key), loss(logits, group, key))


def test_a_seed_that_diverged_has_no_losses_and_the_others_keep_theirs() -> None:
    logits = gaussian(3, 13, 13, 13)
    key = key_frequencies(logits, ADDITION, 2)
    expected = [restricted_loss(logits, ADDITION, key)[0], excluded_loss(logits, ADDITION, key)[0]]
    logits[1, 3, 4, 5], logits[2] = math.nan, math.inf
    key = key_frequencies(logits, ADDITION, 2)
    found = [restricted_loss(logits, ADDITION, key), excluded_loss(logits, ADDITION, key), logit_scale(logits)]
    assert [own[0] for own in found[:2]] == expected
    assert all(own[1:].isnan().all() for own in found)


@pytest.mark.parametrize("count", [0, 7])
def test_a_count_of_frequencies_that_there_are_not_is_refused(count: int) -> None:
    with pytest.raises(ValueError, match=rf"^count must be from 1 to 6, got {count}; "):
        key_frequencies(gaussian(1, 13, 13, 13), ADDITION, count)


def test_a_table_of_another_shape_is_refused() -> None:
    with pytest.raises(ValueError, match=r"^logits must be \(seeds, 12, 12, outputs\), got \(1, 13, 13, 13\); "):
        key_frequencies(gaussian(1, 13, 13, 13), PRODUCT, 1)


def test_logit_scale_is_the_spread_over_outputs() -> None:
    logits = torch.tensor([[[1.0, 3.0], [2.0, 2.0]], [[10.0, 12.0], [0.0, 8.0]]])
    assert logit_scale(logits).tolist() == pytest.approx([math.sqrt(0.5), math.sqrt((1 + 16) / 2)])
    torch.testing.assert_close(logit_scale(logits + 7), logit_scale(logits))
    torch.testing.assert_close(logit_scale(3 * logits), 3 * logit_scale(logits))


OPERATIONS: tuple[Operation, ...] = ("+", "-", "*", "/")


@pytest.mark.parametrize("operation", OPERATIONS)
def test_seeds_in_one_call_equal_seeds_alone(operation: Operation) -> None:
    group = Group(operation, 11)
    logits = gaussian(3, group.size, group.size, 11)
    together = key_frequencies(logits, group, 3)
    for seed in range(3):
        alone = logits[seed : seed + 1]
        key = key_frequencies(alone, group, 3)
        assert torch.equal(key[0], together[seed])
        expected = restricted_loss(logits, group, together)[seed : seed + 1]
        torch.testing.assert_close(restricted_loss(alone, group, key), expected)


# measures of a run

ON = ("measure.fourier=snapshots", "measure.key_frequencies=2")
CASES = {
    "addition": ("addition-97", ON),
    "multiplication": ("multiplication-97", ON),
    "subtraction of a number that is no prime": ("addition-97", (*ON, "task.operation=-", "task.modulus=8")),
    "division": ("addition-97", (*ON, "task.operation=/")),
    "transformer": ("transformer", ON),
}


def by_hand(experiment: Experiment, ensemble: Ensemble, seed: int) -> list[float]:
    """Excluded and restricted loss and the scale of one seed, from the outputs of one pair at a time."""
    task, group = experiment.task, experiment.task.group
    assert isinstance(task, Modular)
    assert group is not None
    own = {name: value[seed].detach() for name, value in ensemble.parameters.items()}
    trained = {tuple(pair.tolist()) for pair in torch.stack(task.decode(task.build(ensemble.seeds[seed]).train.inputs), 1)}
    table, among = [], []
    for a, b in product(group.elements.tolist(), repeat=2):
        table.append(experiment.model.one(own, task.encode(torch.tensor([a]), torch.tensor([b])))[0])
        among.append((a, b) in trained)
    logits = torch.stack(table).reshape(1, group.size, group.size, -1)
    pairs = torch.tensor(among).reshape(1, group.size, group.size)
    key = key_frequencies(logits, group, 2)
    found = (excluded_loss(logits, group, key, pairs), restricted_loss(logits, group, key), logit_scale(logits))
    return [float(value) for value in found]


@pytest.mark.parametrize("case", CASES)
def test_measures_of_an_ensemble_are_those_of_each_network(case: str) -> None:
    name, changes = CASES[case]
    experiment = small(name, *changes)
    ensemble = Ensemble(experiment, [3, 5], CPU)
    fourier = Fourier(experiment, ensemble)
    power = fourier.power()
    measures = fourier.measures(power)
    assert list(measures) == list(FOURIER)
    assert measures["concentration"].tolist() == concentration(power).tolist()
    for seed in range(2):
        found = [measures[name][seed].item() for name in FOURIER[1:]]
        assert found == pytest.approx(by_hand(experiment, ensemble, seed), rel=1e-5)
    alone = Fourier(experiment, one := Ensemble(experiment, [5], CPU))
    torch.testing.assert_close(alone.power()[0], power[1])
    torch.testing.assert_close(alone.measures(alone.power())["excluded_loss"][0], measures["excluded_loss"][1])
    assert one.reading is not None


def test_power_is_of_the_columns_that_read_numbers() -> None:
    """A transformer has tokens for the operator and the equals sign, too."""
    experiment = small("transformer", *ON)
    ensemble = Ensemble(experiment, [0], CPU)
    tokens = ensemble.parameters["tokens.weight"]
    expected = fourier_power(tokens[:, :7].mT, Group("*", 7))
    with torch.no_grad():
        tokens[:, 7:] = 1e6
    torch.testing.assert_close(Fourier(experiment, ensemble).power(), expected)


@pytest.mark.parametrize("when", ["epochs", "snapshots"])
def test_records_have_them_when_asked_and_nothing_else_changes(when: str) -> None:
    experiment = small("addition-97", *ON, f"measure.fourier={when}", "measure.spectra=snapshots")
    found = {}
    for measured in (True, False):
        ensemble = Ensemble(experiment, [0, 1], CPU)
        stepper = Stepper(experiment.method("egd"), ensemble.parameters)
        meter = FullMeter(ensemble, stepper, "snapshots", Fourier.of(experiment, ensemble) if measured else None)
        epochs = train(ensemble, stepper, meter=meter)
        records = [record for _ in range(12) for record in next(epochs).records[1]]
        found[measured] = records, {name: value.detach().clone() for name, value in ensemble.parameters.items()}
    (records, weights), (plain, untouched) = found[True], found[False]
    assert all(torch.equal(weights[name], untouched[name]) for name in weights)
    for own, without in zip(records, plain, strict=True):
        snapshot = own.get("snapshot", {})
        assert {key: value for key, value in own.items() if key not in (*FOURIER, "snapshot")} == {
            key: value for key, value in without.items() if key != "snapshot"
        }
        if "snapshot" in own:
            assert len(snapshot["fourier_power"]) == 3
            assert sum(snapshot["fourier_power"]) == pytest.approx(1, abs=1e-5)
            assert without["snapshot"] == {key: value for key, value in snapshot.items() if key != "fourier_power"}
        else:
            asked = when == "epochs" or is_snapshot(own["epoch"])
            assert set(FOURIER) & set(own) == (set(FOURIER) if asked else set())


def test_a_seed_that_diverges_leaves_the_others_measures() -> None:
    experiment = small("addition-97", *ON)
    ensemble = Ensemble(experiment, [0, 1], CPU)
    fourier = Fourier(experiment, ensemble)
    expected = fourier.measures(fourier.power())
    with torch.no_grad():
        ensemble.parameters["hidden.weight"][0] = math.nan
    found = fourier.measures(fourier.power())
    for name in FOURIER:
        assert found[name][0].isnan()
        assert found[name][1] == expected[name][1]


def test_one_hidden_unit_and_two_numbers() -> None:
    experiment = small(
        "addition-97", "task.modulus=2", "model.width=1", "training.batch=1", "measure.fourier=snapshots",
        "measure.key_frequencies=1",
    )  # fmt: skip
    fourier = Fourier(experiment, Ensemble(experiment, [0], CPU))
    assert fourier.power().tolist() == [[1.0]]
    assert all(math.isfinite(value) for value in fourier.measures(fourier.power()).values())


def test_a_model_that_does_not_say_what_reads_numbers_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    experiment = small("addition-97", *ON)
    monkeypatch.setattr(type(experiment.model), "reading", lambda self, parameters: None)
    with pytest.raises(SpecError, match=r"^measure.fourier must be 'off' for model 'mlp', got 'snapshots'; override "):
        Fourier(experiment, Ensemble(experiment, [0], CPU))


def test_a_task_of_another_kind_or_with_inputs_of_its_own_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    experiment = small("addition-97", *ON)
    ensemble = Ensemble(experiment, [0], CPU)
    with monkeypatch.context() as changed:
        changed.setattr(Modular, "encode", lambda self, a, b: torch.stack([b, self.modulus + a], 1))
        with pytest.raises(SpecError, match=r"^decode of task 'modular' must give the pairs that encode was given, got "):
            Fourier(experiment, ensemble)
    other = small("parity-2")
    monkeypatch.setattr(type(other.task), "group", Group("+", 7), raising=False)
    changed_parity = other.replace(measure=experiment.measure)
    with pytest.raises(SpecError, match=r"^measure.fourier must be 'off' for task 'parity', got 'snapshots'; make it "):
        Fourier(changed_parity, ensemble)
