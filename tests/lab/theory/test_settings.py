"""toy.toml: every setting has a source, and the paper's own are used."""

from __future__ import annotations

import math

from egalitarian.lab.theory.settings import CloudSettings, CurveSettings, load_settings, read_toml


def test_every_setting_has_a_source() -> None:
    for table in read_toml().values():
        for entries in (table, table.get("quick", {})):
            values = [entry for key, entry in entries.items() if key != "quick"]
            assert all(set(entry) == {"value", "source"} and entry["source"] for entry in values)


def test_the_papers_own_settings_are_used() -> None:
    assert load_settings(CloudSettings).eps == 0.1
    assert load_settings(CloudSettings).theta == math.pi / 4
    assert load_settings(CurveSettings, quick=True).seeds < load_settings(CurveSettings).seeds
