"""The paper as data: every file loads, every number has a source, claims are the paper's, a run's id is what it means."""

from __future__ import annotations

import ast
import json
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import torch
from small import small

import egalitarian.lab
from egalitarian.lab.config import catalog, spec
from egalitarian.lab.config.schema import Kind, Settings, SpecError
from egalitarian.lab.config.spec import Experiment, Method, Optim, Run

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


def message(*arguments: Any) -> str:
    with pytest.raises(SpecError) as caught:
        catalog.load(*arguments)
    text = str(caught.value)
    assert " must " in text
    assert ", got " in text.partition(" must ")[2]
    assert "; " in text.partition(", got ")[2]
    return text


# the files


def test_the_experiments_are_those_of_the_paper_in_its_order() -> None:
    assert catalog.names() == [
        *("addition-79", "addition-97", "addition-97-decay-after", "addition-97-validation", "addition-127"),
        *("multiplication-79", "multiplication-97", "multiplication-127"),
        *("parity-2", "parity-2-hinge", "parity-3", "parity-3-hinge", "parity-4", "parity-4-hinge"),
        *("mnist", "transformer", "cifar-shuffle-1", "cifar-shuffle-3", "cifar-shuffle-4", "cifar-shuffle-9"),
    ]


def test_two_files_of_one_name_are_refused(tmp_path: Path) -> None:
    for folder in ("one", "other"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "own.toml").write_text('extends = "addition-97"\n')
    one, other = (str(tmp_path / folder / "own.toml") for folder in ("one", "other"))
    assert list(catalog.load_each([one, one, "addition-97"])) == [one, "addition-97"]
    with pytest.raises(SpecError, match=r"experiments must differ in name, got .*one.* and .*other.*, both 'own'; rename"):
        catalog.load_each([one, "addition-97", other])


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
    assert experiment.method("grokfast-ema").transform == (spec.GrokfastEMA(alpha=0.8, lamb=0.1),)


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
    assert experiment.method("grokfast-ema").transform == (spec.GrokfastEMA(alpha=0.98, lamb=2.0),)


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


# sources


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
    parts = [key for part in catalog.OF_EXPERIMENTS for key in leaves(getattr(experiment, part), part)]
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


# claims


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


# no number of the paper in Python


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
    assert LAB / "train.py" in files
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
    assert found == []


def test_a_learning_rate_in_python_would_be_found(tmp_path: Path) -> None:
    file = tmp_path / "bad.py"
    file.write_text("LR = 0.7\noptimizer = SGD(lr=0.7)\nmodulus: int = 97\nclaim = 5392\n")
    assert sorted(line for line, _ in settings_given(file, ("lr", "modulus"))) == [1, 2, 3]
    assert (4, 5392) in list(literals(file))


# changes


def test_changes_reach_the_experiment_and_the_methods() -> None:
    experiment = catalog.load(
        "addition-97", ["task.modulus=31", "measure.threshold = 0.5", "training.loss=hinge", "optim.lr=2"]
    )
    assert (experiment.task.modulus, experiment.measure.threshold, experiment.training.loss) == (31, 0.5, "hinge")
    assert {method.optim.lr for method in experiment.methods.values()} == {2.0}
    assert experiment.method("egd-after").hidden.lr == 2.0  # takes from optim what it does not set
    assert experiment.method("muon").hidden.lr == 0.3


def test_changes_reach_only_the_methods_chosen() -> None:
    experiment, paper = catalog.load("addition-97", ["optim.lr=2", "epochs=7"], ["egd"]), catalog.load("addition-97")
    assert (experiment.method("egd").optim.lr, experiment.method("egd").epochs) == (2.0, 7)
    assert {name for name in paper.methods if experiment.method(name) != paper.method(name)} == {"egd"}


def test_changes_reach_into_a_chain() -> None:
    experiment = catalog.load("addition-97", ["transform.0.rank=3"], ["egd-rsvd-64"])
    assert experiment.method("egd-rsvd-64").transform == (spec.LowRankPolar(rank=3),)
    assert catalog.load("addition-97").method("egd-rsvd-64").transform == (spec.LowRankPolar(rank=64),)
    whole = catalog.load("addition-97", ['transform=[{name="momentum"},{name="polar"}]'], ["egd"])
    assert whole.method("egd").transform == (spec.Momentum(), spec.Polar())


@pytest.mark.parametrize("place", ["groups", "methods.egd.groups"])
def test_a_change_reaches_a_group_whose_module_has_dots_in_its_name(place: str) -> None:
    groups = catalog.load("transformer", [f"{place}.blocks.0.lr=2", f"{place}.output.lr=3"], ["egd"]).method("egd").groups
    assert {module: own.lr for module, own in groups.items()} == {"blocks.0": 2.0, "output": 3.0}


def test_every_setting_of_a_method_can_be_changed_in_several() -> None:
    """All but its title, which is its own, and whether it is one of the usual."""
    assert set(catalog.OF_METHODS) == {item.name for item in fields(spec.Method)} - {"title", "by_default"}


def test_a_method_without_hidden_gets_one_over_its_optim() -> None:
    experiment = catalog.load("addition-97", ["hidden.weight_decay=0.03", "decay=after"], ["egd"])
    egd = experiment.method("egd")
    assert egd.hidden == egd.optim.replace(weight_decay=0.03)


WRONG_CHANGES = {
    "tsak.modulus=31": "did you mean 'task'?",
    "methods=3": "--set must lead to a setting of a method, got 'methods'; for example methods.egd.optim.lr=0.5",
    "methods.egd=3": "--set must lead to a setting of a method, got 'methods.egd'",
    "title=mine": "--set must begin with a part of an experiment, got 'title'",
    "task.modulus": "--set must be key=value, got 'task.modulus'",
    "=3": "--set must be key=value, got '=3'",
    "task.modulos=31": "task.modulos must be a known setting, got 'modulos'; did you mean 'modulus'?",
    "task.modulus=thirty": "task.modulus must be an integer, got 'thirty'",
    "task.modulus=1": "task.modulus must be >= 2, got 1",
    "task=5": "task must be a table, got 5",
    "task.name=parity": "must be a known setting",
    "task.modulus.x=3": "task.modulus.x must lead to a setting, got a value before its end",
    "task.modulus.x.y=3": "task.modulus.x.y must lead to a setting, got a value before its end",
    "transform.9.rank=3": "transform.9.rank must lead to a setting, got nothing at '9'",
    "transform.x.rank=3": "transform.x.rank must lead to a setting, got nothing at 'x'",
    "transform=polar": "transform must be a list of Transforms, got 'polar'",
    "optim=3": "optim must be a table, got 3",
    "optim.lr=fast": "optim.lr must be a finite number, got 'fast'",
    "hidden=3": "hidden must be a table, got 3",
    "training.loss=hing": "did you mean 'hinge'?",
}


@pytest.mark.parametrize("change", WRONG_CHANGES)
def test_a_wrong_change_is_an_error_that_names_it(change: str) -> None:
    assert WRONG_CHANGES[change] in message("addition-97", [change], ["egd-rsvd-64"])


def test_an_unknown_experiment_or_method_is_an_error_with_the_nearest() -> None:
    assert "did you mean 'addition-97'?" in message("adition-97")
    assert "got '_modular'" in message("_modular")
    assert "must be a name or an existing file, got nowhere.toml" in message("nowhere.toml")
    with pytest.raises(
        SpecError, match=r"method must be one of experiment 'addition-97', got 'egdd'; did you mean 'egd'\?"
    ):
        catalog.load("addition-97").method("egdd")


# a user's own files


def write(path: Path, text: str) -> str:
    path.write_text(text)
    return str(path)


def test_a_users_file_builds_on_the_papers(tmp_path: Path) -> None:
    name = write(
        tmp_path / "mine.toml",
        'extends = "addition-97"\ntitle = "Mine"\n[task]\nmodulus = 11\n[methods.egd]\noptim = { lr = 3 }\n',
    )
    mine, paper = catalog.load(name), catalog.load("addition-97")
    assert (mine.name, mine.title, mine.task) == ("mine", "Mine", paper.task.replace(modulus=11))
    assert mine.method("egd") == paper.method("egd").replace(optim=paper.method("egd").optim.replace(lr=3.0))
    assert mine.method("sgd") == paper.method("sgd")


def test_a_users_file_builds_on_another_beside_it(tmp_path: Path) -> None:
    write(tmp_path / "base.toml", 'extends = "addition-97"\n[task]\nmodulus = 11\n')
    name = write(tmp_path / "mine.toml", 'extends = "base.toml"\ntitle = "Mine"\n')
    assert catalog.load(name).task.modulus == 11


def test_a_table_of_another_kind_replaces_the_one_below(tmp_path: Path) -> None:
    task = "name = 'parity'\nbits = 5\nsecret_bits = 2\ntrain_size = 4\ntest_size = 4"
    name = write(tmp_path / "mine.toml", f'extends = "addition-97"\n[task]\n{task}\n[training]\nloss = "hinge"\n')
    assert catalog.load(name).task.kind == "parity"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('extends = "addition-97"\nsources = 3\n', "sources must be a table, got 3"),
        ('extends = "addition-97"\nclaims = "x"\n', "claims must be a table, got 'x'"),
        ('extends = "addition-97"\nonly = [["egd"]]\n', "only must be a list of methods"),
        ('only = ["egd"]\n[task]\nname = "modular"\n', "only must come with extends"),
    ],
)
def test_parts_of_another_kind_are_told_of(tmp_path: Path, text: str, said: str) -> None:
    assert said in message(write(tmp_path / "mine.toml", text))


@pytest.mark.parametrize("length", [1, 2, 3, 4])
def test_a_circle_of_extends_is_an_error(tmp_path: Path, length: int) -> None:
    for number in range(length):
        write(tmp_path / f"{number}.toml", f'extends = "{(number + 1) % length}.toml"\n')
    assert "extends must not lead back to the same file" in message(str(tmp_path / "0.toml"))


def test_a_broken_file_is_an_error_that_names_it(tmp_path: Path) -> None:
    assert "broken.toml must be TOML" in message(write(tmp_path / "broken.toml", "[task\n"))
    assert "nothing.toml" in message(write(tmp_path / "one.toml", 'extends = "nothing.toml"\n'))
    assert "did you mean 'addition-97'?" in message(write(tmp_path / "two.toml", 'extends = "additon-97"\n'))
    assert "optim must be a table, got 3" in message(write(tmp_path / "three.toml", 'extends = "addition-97"\noptim = 3\n'))
    text = 'extends = "addition-97"\n[methods.egd]\noptim = 3\n'
    assert "methods.egd.optim must be a table, got 3" in message(write(tmp_path / "four.toml", text))


TASK = '''
from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch

from egalitarian.lab.config.schema import setting
from egalitarian.lab.problems.tasks import Data, Split, Task, stream


@dataclass(frozen=True, kw_only=True)
class Copy(Task, kind="copy"):
    """The label is the input."""

    classes: int = setting(least=2)
    order: Literal["up", "down"] = "up"
    looked_up: ClassVar[bool] = True

    @property
    def outputs(self) -> int:
        return self.classes

    @property
    def features(self) -> int:
        return self.classes

    def build(self, seed: int) -> Data:
        points = torch.randint(0, self.classes, (16,), generator=stream(seed, "points"))
        return Data(Split(points[:8, None], points[:8]), Split(points[8:, None], points[8:]))
'''


def test_a_user_brings_a_task_of_their_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spec.Task, "kinds", dict(spec.Task.kinds))
    (tmp_path / "copying.py").write_text(TASK)
    text = 'extends = "addition-97"\n[task]\nname = "copy"\nfile = "copying.py"\nclasses = 3\n'
    experiment = catalog.load(write(tmp_path / "mine.toml", text), ["training.batch=4", "model.width=4"])
    assert (experiment.task.kind, experiment.task.classes, experiment.task.outputs) == ("copy", 3, 3)
    assert experiment.task.build(0).train.labels.shape == (8,)
    assert "task.order must be one of 'up', 'down'" in message(str(tmp_path / "mine.toml"), ["task.order=side"])
    assert "task.file must be a Python file" in message(str(tmp_path / "mine.toml"), ["task.file=none.py"])


# ids


def run_id(*changes: str, name: str = "addition-97", method: str = "egd", seed: int = 0) -> str:
    return Run(catalog.load(name, changes, [method]), method, seed).id


def test_ids_are_what_they_were() -> None:
    """Stored runs are found by them. If this must change, raise `spec.VERSION` and say so in the changelog."""
    assert run_id() == "18502e1fbb58"
    assert run_id(name="parity-3", method="sgd", seed=5) == "20567e772c37"


@pytest.mark.parametrize(
    "change",
    [
        "epochs=7",
        "measure.threshold=0.5",
        "measure.past=50",
        "title_of_method",
        "by_default=false",
        "task.train_fraction=0.5",
        "training.drop_last=true",
        "training.precision=float32",
        "model.scale=1",
        "model.bias=zeros",
        "optim.optimizer=sgd",
        "optim.momentum=0",
        "decay=before",
        'targets=["hidden.weight"]',
    ],
)
def test_an_id_is_the_same_for_the_same_mathematics(change: str) -> None:
    if change in ("title_of_method", "by_default=false"):  # not to be had by a change
        experiment = catalog.load("addition-97")
        field = {"title": "another"} if change == "title_of_method" else {"by_default": False}
        method = experiment.method("egd").replace(**field)
        changed = Run(experiment.replace(methods={"egd": method}), "egd", 0).id
    else:
        changed = run_id(change)
    assert changed == run_id()


def test_an_id_does_not_depend_on_names() -> None:
    experiment = catalog.load("addition-97")
    renamed = experiment.replace(
        name="mine", title="Mine", about="", methods={"other": experiment.method("egd")}, claims={}
    )
    assert Run(renamed.replace(sources={}), "other", 0).id == run_id()
    assert Run(experiment.replace(methods={"egd": experiment.method("egd")}), "egd", 0).id == run_id()


@pytest.mark.parametrize(
    "change",
    [
        "optim.lr=0.70001",
        "optim.weight_decay=0",
        "optim.optimizer=rmsprop",
        "hidden.weight_decay=0.03",
        "task.modulus=79",
        "task.operation=-",
        "task.train_fraction=0.4",
        "model.width=511",
        "model.scale=2",
        "model.weights=torch",
        "training.precision=float64",
        "training.batch=256",
        "training.loss=hinge",
        "training.drop_last=false",
        "decay=after",
        "until=0.96",
        'transform=[{name="lowrank-polar",rank=64}]',
        'transform=[{name="lowrank-polar",rank=65}]',
        'transform=[{name="polar"},{name="momentum"}]',
        'transform=[{name="polar",precision="fast"}]',
        'targets=["output.weight"]',
    ],
)
def test_an_id_is_another_for_other_mathematics(change: str) -> None:
    assert run_id(change) != run_id()


def test_ids_differ_by_rank_seed_version_and_method(monkeypatch: pytest.MonkeyPatch) -> None:
    ids = [
        run_id(),
        run_id(seed=1),
        *(run_id(method=name) for name in catalog.load("addition-97").methods if name != "egd"),
    ]
    assert len(set(ids)) == len(ids)
    monkeypatch.setattr(spec, "VERSION", spec.VERSION + 1)
    assert run_id() not in ids


def test_what_is_described_is_the_run() -> None:
    run = Run(small(), "egd", 3)
    said = json.loads(json.dumps(run.describe()))
    assert (said["id"], said["version"], said["seed"]) == (run.id, spec.VERSION, 3)
    assert (said["experiment"], said["method"]) == ("addition-97", "egd")
    assert said["task"]["modulus"] == 7
    assert said["settings"]["optim"]["lr"] == run.method.optim.lr
    assert said["settings"]["transform"] == [{"name": "polar", "precision": "auto"}]


def test_loading_draws_no_random_number() -> None:
    before = torch.get_rng_state()
    catalog.load("parity-3")
    assert torch.equal(torch.get_rng_state(), before)


def test_a_users_file_takes_over_settings_and_not_claims(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text('extends = "addition-97"\n[task]\nmodulus = 89\n[optim]\nlr = 2.0\n[methods.sgd]\nepochs = 7\n')
    mine = catalog.load(str(path))
    assert mine.title == "mine"
    assert not mine.claims
    assert not mine.about
    assert mine.source("task.modulus") == "mine.toml"
    assert mine.source("task.operation") == catalog.load("addition-97").source("task.operation")
    assert mine.source("methods.egd.optim.lr") == "mine.toml"
    assert mine.source("methods.sgd.epochs") == "mine.toml"


def test_a_longer_budget_leaves_the_papers_claims(tmp_path: Path) -> None:
    assert catalog.load("addition-97", ["epochs=9", "measure.past=0"]).claims == catalog.load("addition-97").claims
    assert not catalog.load("addition-97", ["measure.threshold=0.9"]).claims


def test_a_users_file_must_not_have_a_name_of_the_labs(tmp_path: Path) -> None:
    path = tmp_path / "addition-97.toml"
    path.write_text('extends = "addition-79"\n')
    with pytest.raises(SpecError, match="must not have the name of one of the lab's"):
        catalog.load(str(path))


def test_a_task_file_is_beside_the_file_that_names_it(tmp_path: Path) -> None:
    (tmp_path / "below").mkdir()
    (tmp_path / "task.py").write_text("raise RuntimeError('found')\n")
    (tmp_path / "base.toml").write_text('extends = "_parity"\n[task]\nfile = "task.py"\n')
    (tmp_path / "below/mine.toml").write_text('extends = "../base.toml"\n')
    with pytest.raises(SpecError, match=r"task\.file must run, got RuntimeError: found"):
        catalog.load(str(tmp_path / "below/mine.toml"))


def test_a_file_may_take_over_some_methods_only(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text('extends = "addition-97"\nonly = ["egd"]\n[methods.own]\ntitle = "own"\nepochs = 3\n')
    assert list(catalog.load(str(file)).methods) == ["egd", "own"]
    file.write_text('extends = "addition-97"\nonly = ["egdd"]\n')
    with pytest.raises(SpecError, match=r"only must .* got 'egdd' .*did you mean 'egd'"):
        catalog.load(str(file))


@pytest.mark.parametrize("name", catalog.beyond())
def test_what_is_beyond_the_paper_has_a_question_and_no_claim(name: str) -> None:
    experiment = catalog.load(name)
    assert experiment.about
    assert not experiment.claims
    assert not set(catalog.names()) & set(catalog.beyond())


def test_the_paper_has_final_accuracies_of_mnist_and_the_transformer() -> None:
    assert {name for name in catalog.names() if catalog.load(name).has_final} == {"mnist", "transformer"}
