"""The picture on top of the HTML page, and its interactive twin."""

from __future__ import annotations

from pathlib import Path

from report_records import write_gains, write_run

from egalitarian.lab.analysis import TaskSpeed, gather, task_speeds
from egalitarian.lab.report.charts import Arrays, Detail, chart_json, chart_tasks
from egalitarian.lab.report.figures.tasks import MOST, draw_tasks, families_of, task_rows
from egalitarian.lab.runs import Store


def speeds(folder: Path) -> list[TaskSpeed]:
    store = write_gains(Store(folder))
    write_run(store, "parity-2", "egd", 0, 30)
    gathered = gather(store)
    return task_speeds(gathered, [each.name for each in gathered.experiments])


def test_a_row_has_every_median_and_the_gain(tmp_path: Path) -> None:
    rows = task_rows(found := speeds(tmp_path))
    assert [row.title for row in rows] == ["Addition modulo 79", "Addition modulo 97"], "of one method alone there is none"
    assert {point.method: point.value for point in rows[1].points} == {
        "sgd": 200, "egd": 20, "egd-after": 4, "egd-rsvd-64": 40, "egd-rsvd-128": 25,
    }  # fmt: skip
    assert (rows[1].span, rows[1].text) == ((200, 4), "50.0×")
    assert list(families_of(rows, found)) == ["egd", "stock"]
    assert [text.get_text() for text in draw_tasks(found).axes[0].texts] == ["50.0×", "10.0×"]
    assert len(task_rows(found * MOST)) == MOST


def test_the_chart_has_the_rows_of_the_picture(tmp_path: Path) -> None:
    rows = task_rows(found := speeds(tmp_path))
    made = chart_json(chart_tasks(rows, found), Arrays(), Detail(10, 10))
    (panel,) = made["panels"]
    names = [method["title"] for method in made["methods"]]
    assert [[names[place], value] for place, value, _ in panel["rows"][0]["p"]] == [["SGD", 200], ["EGD", 20]]
    assert [name for name, *_ in made["key"]] == ["egd", "stock"]
    assert made["units"] == [], "tasks cost differently"


def test_without_a_task_the_picture_says_so() -> None:
    assert [text.get_text() for text in draw_tasks([]).axes[0].texts] == ["not run"]
