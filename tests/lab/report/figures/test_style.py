"""The looks of methods: colour is the family, and no two methods of a figure look alike."""

from __future__ import annotations

import pytest
from matplotlib.colors import to_rgb

from egalitarian.lab.config import catalog, load_contents, load_looks
from egalitarian.lab.report.figures import looks_of
from egalitarian.lab.report.figures.style import family_of, ink, on_dark


@pytest.mark.parametrize("count", [3, 7, 12, 30])
def test_methods_the_lab_does_not_know_differ_however_many(count: int) -> None:
    methods = ["sgd", "egd", *(f"own-{index}" for index in range(count))]
    looks = looks_of([], methods)
    assert len({(look.colour, look.line, look.marker) for look in looks.values()}) == len(methods)


@pytest.mark.parametrize("name", ["output", "order", "decay", "full-cifar", "grokking", "addition-97"])
def test_the_colour_is_of_the_methods_family(name: str) -> None:
    experiment = catalog.load(name)
    for method, look in looks_of([experiment], list(experiment.methods)).items():
        family = load_looks().family_of(experiment.method(method))
        assert look.colour in load_looks().families[family].colours, method


def test_families_are_known_by_transforms_and_optimizers() -> None:
    addition = catalog.load("addition-97")
    expected = {"sgd": "stock", "egd-rsvd-64": "egd", "row-norm": "row-norm", "muon": "muon", "natural": "spectra"}
    expected |= {"grokfast-ma": "grokfast", "egd-grokfast": "egd", "unknown": "stock"}
    assert {name: family_of([addition], name) for name in expected} == expected


def test_no_two_methods_of_a_figure_have_both_colour_and_line_style() -> None:
    for plan in load_contents().figures:
        if plan.kind != "costs":  # there every method has a row of its own
            looks = looks_of([catalog.load(name) for name in plan.experiments], plan.methods)
            assert len({(look.colour, look.line) for look in looks.values()}) == len(looks), plan.name


def test_every_method_of_the_lab_has_its_look() -> None:
    for name in catalog.names():
        assert set(catalog.load(name).methods) <= set(load_looks().methods)


def test_letters_are_dark_enough_and_dark_colours_stay() -> None:
    colours = {colour for family in load_looks().families.values() for colour in family.colours}
    for colour in colours:
        assert 0.3 * to_rgb(ink(colour))[0] + 0.59 * to_rgb(ink(colour))[1] + 0.11 * to_rgb(ink(colour))[2] < 0.43
    assert ink("#000000") == "#000000"
    assert ink("#0072B2").upper() == "#0072B2"


@pytest.mark.parametrize("colour", ["#000000", "#595959", "#B3B3B3", "#D55E00", "#003F63", "#8C3B00", "#F0E442"])
def test_a_colour_can_be_seen_on_a_dark_page(colour: str) -> None:
    """Its contrast with #181818 is 3 or more, and a bright colour stays as it is."""

    def luminance(code: str) -> float:
        linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in to_rgb(code)]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    assert (luminance(on_dark(colour)) + 0.05) / (luminance("#181818") + 0.05) >= 3
    if colour in ("#D55E00", "#F0E442"):
        assert on_dark(colour) == colour.lower()
    if colour == "#000000":
        assert on_dark(colour) == "#ffffff"
