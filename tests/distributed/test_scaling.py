"""benchmarks/scaling.py: bytes are those that processes count, clocks predict what they did not see, tables are stored."""

from __future__ import annotations

import importlib
import math
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from worlds import mlp, transformer

import egalitarian as eg
from egalitarian.distributed.exchange import buckets
from egalitarian.distributed.owners import step_time

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
with pytest.MonkeyPatch.context() as patch:
    patch.syspath_prepend(BENCHMARKS)
    scaling, clocks = (importlib.import_module(name) for name in ("scaling", "clocks"))

ASSUMED = scaling.Assumed()
STORED = BENCHMARKS / "results" / "scaling_nvidia-h200_2026-11-20.md"


def members(model: Any, ranks: int, copied: bool) -> Any:
    with torch.device("meta"):
        return scaling.members_of(eg.matrices(model()).taken, ranks, copied)


def sent_by(found: Any) -> list[int]:
    return [sum(each) for each in zip(*(way[0] for flow in found for way in flow), strict=True)]


# -- bytes and owners -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("copied", [False, True])
@pytest.mark.parametrize("model", [mlp, transformer])
def test_its_bytes_and_collectives_are_those_that_four_processes_count(found: Any, model: Any, copied: bool) -> None:
    counted = [each["measure"]["ddp" if copied else "fsdp", model.__name__] for each in found[4]]
    flows = scaling.flows(members(model, 4, copied))
    assert [4 * each for each in sent_by(flows)] == [row[0] for row in counted]
    assert {len(flows) * (1 if copied else 2)} == {row[1] for row in counted}


@pytest.mark.parametrize("copied", [False, True])
@pytest.mark.parametrize("ranks", [2, 3, 5, 64])
@pytest.mark.parametrize("model", [mlp, transformer])
def test_what_is_sent_is_received_and_is_what_members_say(model: Any, ranks: int, copied: bool) -> None:
    those = members(model, ranks, copied)
    found = scaling.flows(those)
    assert all(sum(sent) == sum(received) for flow in found for sent, received in flow)
    assert sum(sent_by(found)) == sum(member.moved for member in those)
    size = sum(member.entry.parameter.numel() for member in those)
    bound = (ranks - 1) * size if copied else 2 * size
    assert sum(sent_by(found)) <= bound


def test_a_bucket_has_matrices_of_all_owners() -> None:
    """Else one owner would receive while all other links wait."""
    those = scaling.members_of(clocks.MODELS[3].entries, 8, copied=False)
    found = buckets(those, [torch.empty(0)] * len(those))
    assert sorted(index for bucket in found for index in bucket.indices) == list(range(len(those)))
    assert len(found) > 8
    owners = [{member.owner for member in bucket.members} for bucket in found]
    assert all(each == set(range(8)) for each in owners[:-8])


@pytest.mark.parametrize(("rows", "ranks"), [(8, 4), (13, 4), (3, 5), (7, 1), (768, 1024)])
def test_rows_are_divided_as_torch_divides_them(rows: int, ranks: int) -> None:
    sizes = [len(part) for part in torch.arange(rows).chunk(ranks)]
    found = scaling.pieces((rows, 2), ranks, copied=False)
    assert [piece.sizes[0] for piece in found] == sizes + [0] * (ranks - len(sizes))
    whole = torch.arange(2 * rows).view(rows, 2)
    assert torch.equal(torch.cat([piece.of(whole) for piece in found]), whole)


def test_one_rank_computes_all_and_moves_nothing() -> None:
    model = clocks.MODELS[0]
    for each in scaling.costs(model, 1, False, clocks.TIERS, ASSUMED).values():
        assert each.together == each.in_turn == 0
        assert each.computing == pytest.approx(each.everywhere)


@pytest.mark.parametrize("ranks", [8, 64])
def test_owners_take_at_least_their_share_and_moving_in_turn_is_the_slowest(ranks: int) -> None:
    model = clocks.MODELS[1]
    alone = scaling.costs(model, 1, False, clocks.TIERS, ASSUMED)
    for tier, each in scaling.costs(model, ranks, False, clocks.TIERS, ASSUMED).items():
        assert alone[tier].everywhere / ranks <= each.computing <= alone[tier].everywhere
        assert each.together <= each.in_turn


@pytest.mark.parametrize("ranks", [8, 64, 1024])
@pytest.mark.parametrize("model", clocks.MODELS[:4], ids=lambda model: model.name)
def test_auto_takes_owners_of_copies_where_the_page_says_that_they_are_faster(model: Any, ranks: int) -> None:
    found = scaling.costs(model, ranks, True, clocks.TIERS, ASSUMED)["coarse"]
    pays = step_time(scaling.members_of(model.entries, ranks, copied=True)).pays
    assert pays == (found.computing + found.together < found.everywhere)


def test_links_are_those_of_the_node_and_then_those_that_leave_it() -> None:
    assert scaling.bandwidth(8, ASSUMED) == ASSUMED.inside
    assert scaling.bandwidth(1024, ASSUMED) == pytest.approx(ASSUMED.between, rel=0.01)
    assert ASSUMED.between < scaling.bandwidth(64, ASSUMED) < ASSUMED.inside


# -- models and clocks ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "least", "most"),
    [
        ("124M", 0.12, 0.13),
        ("350M", 0.34, 0.36),
        ("1.3B", 1.25, 1.35),
        ("7B", 6.5, 7),
        ("13B", 12.5, 13.2),
        ("70B", 67, 71),
    ],
)
def test_models_are_as_large_as_their_names_say(name: str, least: float, most: float) -> None:
    model = next(each for each in clocks.MODELS if each.name == name)
    assert least * 1e9 <= model.parameters <= most * 1e9


def test_queries_keys_and_values_count_as_three_matrices_of_one_parameter() -> None:
    model = clocks.MODELS[0]
    assert clocks.matrices_of(model.entries) == Counter({(768, 768): 48, (3072, 768): 12, (768, 3072): 12})
    assert len(model.entries) == 4 * model.layers


def points(start: float, top: float, growth: float, kernel: Any) -> list[Any]:
    clock = clocks.Clock(start, top, growth, 2048)
    shapes = ((64, 64), (128, 512), (256, 256), (512, 768), (1024, 1024), (2048, 2048))
    return [
        clocks.Point(str(shape), shape, 1, clock.seconds(clocks.operations(kernel, *shape), min(shape))) for shape in shapes
    ]


def test_a_fit_finds_the_clock_that_made_the_times_and_predicts_what_is_left_out() -> None:
    made = points(1e-4, 2e14, 0.4, clocks.COARSE)
    found = clocks.fitted(made, clocks.COARSE)
    assert (found.start, found.top, found.growth) == pytest.approx((1e-4, 2e14, 0.4), rel=1e-3)
    inner = {name: ratio for name, ratio in clocks.left_out(made, clocks.COARSE).items() if name != "(2048, 2048)"}
    assert list(inner.values()) == pytest.approx([1.0] * 5, rel=1e-3)


def test_an_error_is_that_of_a_fit_without_the_point() -> None:
    made = points(1e-4, 2e14, 0.4, clocks.COARSE)
    wrong = clocks.Point("wrong", (768, 768), 1, 10 * made[4].seconds)
    without = clocks.fitted(made, clocks.COARSE).seconds(clocks.operations(clocks.COARSE, 768, 768), 768)
    assert clocks.left_out([*made, wrong], clocks.COARSE)["wrong"] == pytest.approx(without / wrong.seconds, rel=1e-6)


def test_beyond_the_largest_measured_shape_the_rate_stays() -> None:
    clock = clocks.Clock(1e-4, 2e14, 0.4, 2048)
    assert clock.rate(8192) == clock.rate(2048) > clock.rate(1024)


def test_products_grow_with_the_cube_of_a_square_and_are_fewer_for_a_looser_tier() -> None:
    for kernel in (clocks.COARSE, clocks.EXACT):
        assert clocks.operations(kernel, 128, 128) == pytest.approx(8 * clocks.operations(kernel, 64, 64))
        assert clocks.operations(kernel, 64, 256) == clocks.operations(kernel, 256, 64) > clocks.operations(kernel, 64, 64)
    assert clocks.operations(clocks.COARSE, 64, 64) < clocks.operations(clocks.EXACT, 64, 64)


def test_coarse_takes_on_gpt_124m_what_was_measured_there() -> None:
    coarse = clocks.TIERS[0]
    seen = sorted(clocks.in_a_step())
    assert seen[0] < coarse.seconds(clocks.matrices_of(clocks.MODELS[0].entries)) < seen[-1]


def test_exact_predicts_the_step_of_gpt_124m_which_is_not_among_its_points() -> None:
    exact = clocks.TIERS[2]
    assert math.isclose(exact.seconds(clocks.matrices_of(clocks.MODELS[0].entries)), clocks.alone("exact"), rel_tol=0.1)


# -- tables ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "text"), [(0.0, "0"), (0.01234, "0.0123"), (1.0, "1.00"), (9.996, "10.0"), (123.4, "123"), (15432.0, "15400")]
)
def test_figures_are_three(value: float, text: str) -> None:
    assert scaling.figures(value) == text


def test_models_that_do_not_fit_are_left_out() -> None:
    shown = {(model.name, gpus, layout) for model, gpus, layout, _ in scaling.settings(ASSUMED)}
    assert ("7B", 1, "shards") in shown
    assert ("7B", 8, "copies") in shown
    assert ("13B", 1, "shards") not in shown
    assert ("13B", 8, "copies") not in shown
    assert ("70B", 8, "shards") in shown


def test_the_stored_tables_are_those_that_the_program_makes_now() -> None:
    assert scaling.text(ASSUMED) == STORED.read_text(encoding="utf-8")
