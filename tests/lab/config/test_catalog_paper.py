"""The paper as data: every file loads, every number has a source, claims are the paper's, no number is in Python."""

from __future__ import annotations

import ast
import json
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import fields
from pathlib import Path

import pytest

import egalitarian.lab
from egalitarian.lab import config
from egalitarian.lab.config import catalog, merging
from egalitarian.lab.config.method import Method, Optim
from egalitarian.lab.config.schema import Kind, Settings
from egalitarian.lab.config.spec import Experiment

LAB = Path(egalitarian.lab.__file__).parent


OF_THE_PAPER = {"column-norm": "row-norm"}
"""The paper's names in its tables, and ours."""


TABLES = json.loads(
    (Path(__file__).parents[2] / "data" / "tables.json").read_text(),
    object_hook=lambda table: {OF_THE_PAPER.get(name, name): row for name, row in table.items()},
)


TEXT_READ_LITERALLY = ("addition-97-decay-after", "parity-2-hinge", "parity-3-hinge", "parity-4-hinge")


WITH_A_VALIDATION_SPLIT = "addition-97-validation"
"""The text read literally as well, in what does not change a number of the paper."""


IN_STEPS, BY_TRAIN_ACCURACY = TABLES.pop("steps"), TABLES.pop("mean_train_accuracy")


NOT_SETTINGS = ("title", "by_default")


def test_the_experiments_are_those_of_the_paper_in_its_order() -> None:
    assert catalog.names() == [
        *("addition-79", "addition-97", "addition-97-decay-after", "addition-97-validation", "addition-127"),
        *("multiplication-79", "multiplication-97", "multiplication-127"),
        *("parity-2", "parity-2-hinge", "parity-3", "parity-3-hinge", "parity-4", "parity-4-hinge"),
        *("mnist", "transformer", "cifar-shuffle-1", "cifar-shuffle-3", "cifar-shuffle-4", "cifar-shuffle-9"),
    ]


def test_no_file_of_the_paper_is_left_out() -> None:
    files = {path.stem for path in (LAB / "paper").glob("*.toml")}
    assert set(catalog.names()) == {name for name in files if not name.startswith("_")} - {"toy"}
    for path in (LAB / "paper").glob("*.toml"):
        assert tomllib.loads(path.read_text())


@pytest.mark.parametrize("name", [*catalog.names(), *catalog.beyond()])
def test_every_experiment_loads(name: str) -> None:
    experiment = catalog.load(name)
    assert experiment.name == name
    assert experiment.title
    assert set(TABLES.get(name, {}) or IN_STEPS.get(name, {}) or BY_TRAIN_ACCURACY.get(name, {})) <= set(experiment.methods)
    assert set(experiment.claims) <= set(experiment.methods)
    assert all(method.title for method in experiment.methods.values())


SETTINGS_OF_THE_PAPER = {
    "addition-79": ("modular", {"operation": "+", "modulus": 79}, 512, 512, 0.7, 1e-4),
    "multiplication-127": ("modular", {"operation": "*", "modulus": 127}, 512, 512, 0.7, 1e-4),
    "parity-2": ("parity", {"bits": 400, "secret_bits": 2, "train_size": 2000, "test_size": 10000}, 50, 32, 0.01, 1e-3),
    "parity-3": ("parity", {"bits": 100, "secret_bits": 3, "secret": "first"}, 100, 32, 0.0416239, 1e-2),
    "parity-4": ("parity", {"bits": 50, "secret_bits": 4, "secret": "first"}, 100, 32, 0.0230841, 1e-2),
}


@pytest.mark.parametrize("name", SETTINGS_OF_THE_PAPER)
def test_settings_are_those_of_the_recipes(name: str) -> None:
    kind, task, width, batch, lr, decay = SETTINGS_OF_THE_PAPER[name]
    experiment = catalog.load(name)
    assert (experiment.task.kind, experiment.model.kind) == (kind, "mlp")
    assert {key: getattr(experiment.task, key) for key in task} == task
    assert (experiment.model.width, experiment.training.batch) == (width, batch)
    assert experiment.measure.threshold == 0.95
    for method in ("sgd", "egd", "row-norm"):
        own = experiment.method(method)
        assert (own.optim.lr, own.optim.weight_decay, own.decay) == (lr, decay, "before")
        assert own.until == (None if method == "sgd" else 0.95)
        assert own.targets == ("hidden.weight",)


def optims(experiment: Experiment) -> dict[str, tuple[float, float]]:
    """(learning rate, weight decay) of the methods the paper has."""
    return {
        name: (experiment.method(name).optim.lr, experiment.method(name).optim.weight_decay) for name in experiment.claims
    }


def test_mnist_is_that_of_the_recipes() -> None:
    experiment = catalog.load("mnist")
    assert (experiment.task.kind, experiment.task.train_size) == ("mnist", 1000)
    assert (experiment.model.kind, experiment.model.widths, experiment.model.scale) == ("layers", (200, 200), 8)
    assert (experiment.training.loss, experiment.training.batch) == ("one-hot-squared-error", 200)
    steps = experiment.training.passes * experiment.task.train_size // experiment.training.batch
    assert (steps, experiment.measure.threshold) == (100, 0.85)
    little = {"adamw", "egd-little-decay", "egd-adam"}  # decay, so what is learnt late stays
    for name, method in experiment.methods.items():
        assert steps * method.epochs == (100_000 if name in little else 30_000)
    assert optims(experiment) == {name: (1e-3, 0.01 if name == "adamw" else 2.0) for name in experiment.claims}
    assert experiment.method("adamw-decay") == experiment.method("adamw").replace(
        title="AdamW, the same decay", optim=experiment.method("egd").optim, epochs=300
    )
    for method in map(experiment.method, experiment.claims):
        assert (method.optim.optimizer, method.decay, method.decayed) == ("adamw", "decoupled", "all")
        assert method.targets == ("layers.*.weight",)
    assert experiment.method("grokfast-ema").transform == (config.GrokfastEMASettings(alpha=0.8, lamb=0.1),)


def test_the_transformer_is_that_of_the_recipes() -> None:
    experiment = catalog.load("transformer")
    assert (experiment.task.operation, experiment.task.modulus, experiment.task.train_size) == ("*", 97, 97 * 96 // 2)
    model = experiment.model
    assert (model.kind, model.depth, model.width, model.heads) == ("transformer", 2, 128, 4)
    assert (experiment.training.batch, experiment.training.drop_last, experiment.training.warmup) == (512, False, 10)
    assert optims(experiment) == {name: (1e-3, 0.0 if name == "adam" else 0.005) for name in experiment.claims}
    assert experiment.method("adam-decay").optim == experiment.method("egd").optim
    for method in map(experiment.method, experiment.claims):
        assert (method.optim.optimizer, method.optim.betas) == ("adam", (0.9, 0.98))
        assert (method.decay, method.decayed) == ("after", "all")
        assert method.targets == ("blocks.*.up.weight", "blocks.*.down.weight")
    assert experiment.method("egd-first").targets == ("blocks.0.up.weight",)
    assert experiment.method("adam").epochs == 6500
    assert experiment.method("grokfast-ema").transform == (config.GrokfastEMASettings(alpha=0.98, lamb=2.0),)


@pytest.mark.parametrize("shuffles", [1, 3, 4, 9])
def test_shuffled_cifar_is_that_of_the_recipes(shuffles: int) -> None:
    experiment = catalog.load(f"cifar-shuffle-{shuffles}")
    task, model = experiment.task, experiment.model
    assert (task.kind, task.train_size, task.shuffles, task.epochs) == ("cifar-10-shuffled", 10_000, shuffles, 100)
    assert (model.kind, model.channels, model.width) == ("cnn", (32, 64, 64), 512)
    assert (experiment.training.batch, experiment.measure.threshold) == (256, 1)
    assert optims(experiment) == dict.fromkeys(experiment.claims, (0.00025, 0.0))
    for name, method in experiment.methods.items():
        assert method.optim.optimizer == name.removesuffix("-egd")
        assert method.targets == ("conv.*.weight", "hidden.weight")
        assert (method.epochs, bool(method.transform)) == (100, name.endswith("-egd"))


def leaves(settings: Settings, key: str) -> Iterator[str]:
    """The dotted key of every setting."""
    if isinstance(settings, Kind):
        yield f"{key}.name"
    for item in fields(settings):
        value = getattr(settings, item.name)
        if isinstance(value, Settings):
            yield from leaves(value, f"{key}.{item.name}")
        elif isinstance(value, tuple) and value and isinstance(value[0], Settings):
            for place, one in enumerate(value):
                yield from leaves(one, f"{key}.{item.name}.{place}")
        elif item.name not in NOT_SETTINGS:
            yield f"{key}.{item.name}"


def keys(experiment: Experiment) -> list[str]:
    parts = [key for part in merging.PARTS for key in leaves(getattr(experiment, part), part)]
    return parts + [key for name, method in experiment.methods.items() for key in leaves(method, f"methods.{name}")]


@pytest.mark.parametrize("name", catalog.names())
def test_every_setting_has_a_source(name: str) -> None:
    experiment = catalog.load(name)
    found = keys(experiment)
    egd = "adam-egd" if name.startswith("cifar") else "egd"
    assert {"task.name", "model.name", "training.precision", "measure.past", f"methods.{egd}.optim.lr"} <= set(found)
    assert {f"methods.{egd}.{part}" for part in ("targets", "decay", "until", "epochs", "hidden")} <= set(found)
    assert f"methods.{egd}.transform.0.name" in found
    assert [key for key in found if not experiment.source(key).strip()] == []


@pytest.mark.parametrize("name", catalog.names())
def test_every_source_is_of_something(name: str) -> None:
    experiment = catalog.load(name)
    known = keys(experiment)
    assert [key for key in experiment.sources if not any(f"{one}.".startswith(f"{key}.") for one in known)] == []


@pytest.mark.parametrize("name", catalog.names())
def test_what_the_paper_has_is_not_called_ours(name: str) -> None:
    experiment = catalog.load(name)
    for method in experiment.claims:
        of_the_paper = [
            f"methods.{method}.{part}" for part in ("optim.lr", "optim.weight_decay", "transform", "decay", "until")
        ]
        assert [key for key in of_the_paper if experiment.source(key).startswith("ours")] == []


def test_a_source_stands_for_all_below_it() -> None:
    experiment = catalog.load("addition-97").replace(sources={"task": "a", "task.modulus": "b"})
    assert [experiment.source(key) for key in ("task", "task.operation", "task.modulus", "model")] == ["a", "a", "b", ""]


@pytest.mark.parametrize("name", [name for name in TABLES if name not in ("source", "gains")])
def test_claims_are_the_papers_number_by_number(name: str) -> None:
    claims = catalog.load(name).claims
    said = {method: [claim.epochs, claim.seconds, claim.ms_per_epoch] for method, claim in claims.items()}
    expected = {method: ["never" if row[0] is None else row[0], *row[1:]] for method, row in TABLES[name].items()}
    assert said == expected


@pytest.mark.parametrize("name", IN_STEPS)
def test_claims_in_steps_are_the_papers_number_by_number(name: str) -> None:
    claims = catalog.load(name).claims
    said = {
        method: [claim.steps, claim.seconds, claim.ms_per_step, claim.final_accuracy] for method, claim in claims.items()
    }
    assert said == IN_STEPS[name]


@pytest.mark.parametrize("name", BY_TRAIN_ACCURACY)
def test_claims_of_train_accuracy_are_the_papers_number_by_number(name: str) -> None:
    claims = catalog.load(name).claims
    said = {method: claim.mean_train_accuracy for method, claim in claims.items()}
    assert said == pytest.approx({method: percent / 100 for method, percent in BY_TRAIN_ACCURACY[name].items()})


def test_every_experiment_of_the_papers_tables_is_there() -> None:
    tables = {*TABLES, *IN_STEPS, *BY_TRAIN_ACCURACY} - {"source", "gains"}
    assert tables == set(catalog.names()) - {*TEXT_READ_LITERALLY, WITH_A_VALIDATION_SPLIT}


def test_the_validation_split_is_all_that_is_different() -> None:
    literal, one = catalog.load(WITH_A_VALIDATION_SPLIT), catalog.load("addition-97")
    assert literal.training == one.training.replace(validation=0.5)
    assert (literal.task, literal.model, literal.methods, literal.claims) == (one.task, one.model, one.methods, one.claims)


@pytest.mark.parametrize("name", TEXT_READ_LITERALLY)
def test_the_text_read_literally_differs_only_where_it_says(name: str) -> None:
    base = name.removesuffix("-hinge").removesuffix("-decay-after")
    literal, one = catalog.load(name), catalog.load(base)
    assert {method: claim.epochs for method, claim in literal.claims.items()} == {
        m: c.epochs for m, c in one.claims.items()
    }
    assert all(claim.erratum for claim in literal.claims.values())
    assert literal.model == one.model
    if name.endswith("-hinge"):
        assert literal.training == one.training.replace(loss="hinge")
        assert literal.task == one.task.replace(secret="random")
        assert literal.methods == one.methods
    else:
        assert (literal.task, literal.training) == (one.task, one.training)
        assert all(literal.method(method).decay == "after" for method in one.claims)
        assert all(one.method(method).decay == "before" for method in one.claims)


def test_average_gains_are_the_papers() -> None:
    tables = tomllib.loads((LAB / "paper" / "_tables.toml").read_text())["tables"]
    rows = [row for table in tables for row in table.get("gains", []) if "epochs" in row]
    assert {row["name"]: [row["epochs"], row["seconds"]] for row in rows} == TABLES["gains"]


def literals(file: Path) -> Iterator[tuple[int, float]]:
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Constant) and isinstance(node.value, int | float) and not isinstance(node.value, bool):
            yield node.lineno, node.value


def settings_given(file: Path, names: Sequence[str]) -> Iterator[tuple[int, str]]:
    """Where a call or an assignment sets one of these names to a number."""
    for node in ast.walk(ast.parse(file.read_text())):
        pairs = [(keyword.arg, keyword.value) for keyword in node.keywords] if isinstance(node, ast.Call) else []
        if isinstance(node, ast.Assign):
            pairs += [(getattr(target, "id", None), node.value) for target in node.targets]
        elif isinstance(node, ast.AnnAssign):
            pairs.append((getattr(node.target, "id", None), node.value))
        for name, value in pairs:
            if (name or "").lower() in names and isinstance(value, ast.Constant) and isinstance(value.value, int | float):
                yield node.lineno, f"{name}={value.value}"


def test_numbers_of_the_paper_sit_in_no_python_file() -> None:
    tables = [table for name, table in TABLES.items() if name not in ("source", "gains")] + list(IN_STEPS.values())
    rows = [row for table in tables for row in table.values()]
    # of the rest one cannot tell: 62 epochs, or 30.6 ms, may well be something else
    paper = {number for row in rows for number in row[:1] if number and number > 1000} | {0.0416239, 0.0230841}
    assert 5392 in paper
    files = list(LAB.rglob("*.py"))
    assert LAB / "training" / "loop.py" in files
    found = [(file.name, line, value) for file in files for line, value in literals(file) if value in paper]
    assert found == []


def test_no_python_file_sets_what_an_experiment_sets() -> None:
    names = {item.name for item in (*fields(Optim), *fields(Method))} & {
        "lr",
        "weight_decay",
        "momentum",
        "until",
        "epochs",
    }
    names |= {"modulus", "bits", "secret_bits", "train_size", "test_size", "width", "batch", "rank", "threshold"}
    files = [file for file in LAB.rglob("*.py") if not {"theory", "report", "bench"} & set(file.parts)]
    # the report's `width` is that of a picture, the theory's settings are in toy.toml, the benchmark's GPT is no experiment
    found = [(file.name, *place) for file in files for place in settings_given(file, sorted(names))]
    assert [each for each in found if each[2] != "epochs=0"] == []  # a count of epochs begins there; a budget is at least 1


def test_a_learning_rate_in_python_would_be_found(tmp_path: Path) -> None:
    file = tmp_path / "bad.py"
    file.write_text("LR = 0.7\noptimizer = SGD(lr=0.7)\nmodulus: int = 97\nclaim = 5392\n")
    assert sorted(line for line, _ in settings_given(file, ("lr", "modulus"))) == [1, 2, 3]
    assert (4, 5392) in list(literals(file))


@pytest.mark.parametrize("name", catalog.beyond())
def test_what_is_beyond_the_paper_has_a_question_and_no_claim(name: str) -> None:
    experiment = catalog.load(name)
    assert experiment.about
    assert not experiment.claims
    assert not set(catalog.names()) & set(catalog.beyond())


def test_the_paper_has_final_accuracies_of_mnist_and_the_transformer() -> None:
    assert {name for name in catalog.names() if catalog.load(name).has_final} == {"mnist", "transformer"}
