"""PyTorch's optimizer test infrastructure, applied to EGD and to torch optimizers with EGD attached.

PyTorch provides the rows: arguments, schedulers, implementations and errors of an optimizer. A row is used unchanged, so
what it states about SGD must also hold for SGD with EGD attached. The checks are our own.
"""

# ruff: noqa: PT009, PT027 - assertEqual is PyTorch's, which compares tensors and state_dicts

from __future__ import annotations

import copy
import gc
import io
import pickle
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import Any
from unittest import mock

import pytest
import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import ReduceLROnPlateau
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from egalitarian import EGD, Attachment, GrokfastEMA, LowRankPolar, Momentum, Polar, RowNorm, matrices
from egalitarian.optimizers import attach

NEWEST_TESTED = "2.13.0"
"""The newest torch whose private optimizer tests are known to be importable."""

try:
    # importing common_utils forbids setting torch.backends flags, also for other tests of the same process
    with warnings.catch_warnings(), mock.patch.object(torch.backends, "disable_global_flags"):
        warnings.filterwarnings("ignore", category=DeprecationWarning)
        from torch.testing._internal.common_device_type import instantiate_device_type_tests
        from torch.testing._internal.common_optimizers import (
            ErrorOptimizerInput,
            OptimizerErrorEnum,
            OptimizerInfo,
            OptimizerInput,
            _get_optim_inputs_including_global_cliquey_kwargs,
            get_error_inputs_for_all_optims,
            optim_db,
            optim_inputs_func_sgd,
            optims,
        )
        from torch.testing._internal.common_utils import TestCase, set_default_dtype
except (ImportError, AttributeError) as missing:
    if torch.__version__.split("+")[0] <= NEWEST_TESTED:
        raise  # these versions have them, so a skip would hide an error
    pytest.skip(f"torch {torch.__version__} has moved its private optimizer tests: {missing}", allow_module_level=True)


pytestmark = pytest.mark.filterwarnings("ignore:EGD cannot tell an embedding")  # PyTorch's rows have no plan


# -- the optimizers under test ----------------------------------------------------------------------------------------


class _Attached:
    """Attaches EGD to every matrix that the torch optimizer is given."""

    def __init__(self, params: Any, *args: Any, **kwargs: Any) -> None:
        super().__init__(params, *args, **kwargs)
        groups = enumerate(self.param_groups)  # type: ignore[attr-defined]
        held = {p: f"{number}.{index}" for number, group in groups for index, p in enumerate(group["params"])}
        named = {name: p for p, name in held.items()}
        if any(p.ndim >= 2 for p in named.values()):
            attach(self, matrices(named, include="*"))  # type: ignore[arg-type]


class AttachedSGD(_Attached, torch.optim.SGD):
    pass


class AttachedAdam(_Attached, torch.optim.Adam):
    pass


class AttachedAdamW(_Attached, torch.optim.AdamW):
    pass


class AttachedRMSprop(_Attached, torch.optim.RMSprop):
    pass


BARE: dict[type[Optimizer], type[Optimizer]] = {
    EGD: torch.optim.SGD,
    AttachedSGD: torch.optim.SGD,
    AttachedAdam: torch.optim.Adam,
    AttachedAdamW: torch.optim.AdamW,
    AttachedRMSprop: torch.optim.RMSprop,
}


def egd_inputs(device: str, dtype: torch.dtype | None = None) -> list[OptimizerInput]:
    """The rows of SGD without dampening, which EGD lacks, and with the lr that it requires; and rows of our own."""
    shared = [row for row in optim_inputs_func_sgd(device, dtype) if "dampening" not in row.kwargs]
    own: dict[str, dict[str, Any]] = {
        "decay_before": {"decay_before": 0.1},
        "decay_before, maximize": {"decay_before": 0.1, "maximize": True},
        "both decays, momentum": {"decay_before": 0.1, "weight_decay": 0.1, "momentum": 0.9},
        "nesterov, maximize": {"momentum": 0.9, "nesterov": True, "maximize": True},
        "momentum before": {"transform": (Momentum(0.9), Polar())},
        "low rank": {"transform": LowRankPolar(3)},
        "row norm, tensor lr": {"transform": RowNorm(), "lr": torch.tensor(0.01)},
    }
    rows = [(row.kwargs, row.desc) for row in shared] + [(kwargs, desc) for desc, kwargs in own.items()]
    return [OptimizerInput(params=None, kwargs={"lr": 0.01, **kwargs}, desc=desc) for kwargs, desc in rows]


def egd_error_inputs(device: str, dtype: torch.dtype) -> list[ErrorOptimizerInput]:
    matrix = nn.Parameter(torch.randn(2, 3, device=device, dtype=dtype))
    complex_matrix = nn.Parameter(torch.randn(2, 3, device=device, dtype=torch.complex64))
    own: list[tuple[Any, dict[str, Any], type[Exception], str]] = [
        (None, {"lr": -1.0}, ValueError, r"^lr must be a number >= 0, got -1\.0"),
        (None, {"lr": float("nan")}, ValueError, "^lr must be a number >= 0, got nan"),
        (None, {"lr": float("inf")}, ValueError, "^lr must be a number >= 0, got inf"),
        (None, {"weight_decay": -1}, ValueError, "^weight_decay must be a number >= 0, got -1"),
        (None, {"decay_before": -0.5}, ValueError, r"^decay_before must be a number >= 0, got -0\.5"),
        (None, {"momentum": -0.5}, ValueError, r"^momentum must be a number >= 0, got -0\.5"),
        (None, {"nesterov": True}, ValueError, "^momentum must be > 0 with nesterov=True, got 0"),
        (None, {"transform": ()}, ValueError, "^transform must be at least one transform"),
        (None, {"transform": Polar}, TypeError, r"^transform must be a transform .* call it: Polar\(\.\.\.\)"),
        (None, {"transform": LowRankPolar(3)}, ValueError, r"^rank must be in \[1, 2\]"),
        (None, {"differentiable": True}, TypeError, "unexpected keyword argument 'differentiable'"),
        ([{"params": [matrix], "equalize": 1}], {}, ValueError, "^equalize must be True or False, got 1"),
        ([{"params": [matrix], "decay_before": -1}], {}, ValueError, "^decay_before must be a number >= 0, got -1"),
        ([("w", complex_matrix)], {}, TypeError, "^'w' must be real floating-point to be equalised, got torch.complex64"),
        ([], {}, ValueError, "optimizer got an empty parameter list"),
    ]
    return [
        *get_error_inputs_for_all_optims(device, dtype),
        *(
            ErrorOptimizerInput(OptimizerInput(params, kwargs, regex), error_type=kind, error_regex=regex)
            for params, kwargs, kind, regex in own
        ),
    ]


def _row(optim_cls: type[Optimizer]) -> OptimizerInfo:
    bare = next(info for info in optim_db if info.optim_cls is BARE[optim_cls])
    ours = optim_cls is EGD
    return OptimizerInfo(
        optim_cls,
        optim_inputs_func=egd_inputs if ours else bare.optim_inputs_func,
        optim_error_inputs_func=egd_error_inputs if ours else bare.optim_error_inputs_func,
        scheduler_inputs=bare.scheduler_inputs,
        supported_impls=("foreach",) if ours else bare.supported_impls,
        not_og_supported_flags=bare.not_og_supported_flags,
        has_capturable_arg=bare.has_capturable_arg,
        supports_fused_on=() if ours else bare.supports_fused_on,
    )


ROWS = [_row(optim_cls) for optim_cls in BARE]
EGD_ROW = [row for row in ROWS if row.optim_cls is EGD]
ATTACHED_ROWS = [row for row in ROWS if row.optim_cls is not EGD]
ATTACHED_SGD_ROW = [row for row in ROWS if row.optim_cls is AttachedSGD]


def _inputs(info: OptimizerInfo, device: str, dtype: torch.dtype) -> list[OptimizerInput]:
    """Every row of the optimizer, as for-loop, foreach and fused. Differentiable is refused, which has its own test.

    PyTorch leaves foreach out where it has no fast kernels, as on a CPU. It works there too.
    """
    rows = _get_optim_inputs_including_global_cliquey_kwargs(device, dtype, info, skip=("differentiable", "foreach"))
    foreach = [
        OptimizerInput(params=None, kwargs={**row.kwargs, "foreach": True}, desc=f"{row.desc} & foreach")
        for row in info.optim_inputs_func(device)
    ]
    return rows + foreach


def _make(info: OptimizerInfo, params: Any, kwargs: Mapping[str, Any]) -> Optimizer:
    """The optimizer with copied arguments: a scheduler writes into a Tensor lr."""
    required = {"lr": 0.01} if info.optim_cls is EGD else {}
    return info.optim_cls(params, **copy.deepcopy({**required, **kwargs}))


# -- the problem ------------------------------------------------------------------------------------------------------

LAYOUTS = ("dense", "transposed", "strided")


def _layouts(kwargs: Mapping[str, Any]) -> tuple[str, ...]:
    """PyTorch's fused kernels on a CPU ignore strides: they are wrong for memory with gaps, with or without EGD."""
    return LAYOUTS[:2] if kwargs.get("fused") else LAYOUTS


def _laid_out(values: Tensor, layout: str) -> nn.Parameter:
    if layout == "strided":
        values = torch.stack([values, values], -1)[..., 0]
    if layout == "transposed" and values.ndim == 2:
        values = values.mT.contiguous().mT
    return nn.Parameter(values)


class Problem:
    """Least squares with a weight matrix and a bias, determined by the seed."""

    def __init__(self, device: str, dtype: torch.dtype, layout: str = "dense", seed: int = 0) -> None:
        generator = torch.Generator().manual_seed(seed)

        def randn(*shape: int) -> Tensor:
            return torch.randn(*shape, generator=generator, dtype=torch.float64).to(device, dtype)

        self.inputs, self.targets = randn(8, 5), randn(8, 4)
        self.weight = _laid_out(randn(4, 5), layout)
        self.bias = _laid_out(randn(4), layout)
        self.params = [self.weight, self.bias]

    def loss(self) -> Tensor:
        return (self.inputs @ self.weight.mT + self.bias - self.targets).square().mean()

    def backward(self) -> Tensor:
        self.weight.grad = self.bias.grad = None
        loss = self.loss()
        loss.backward()
        return loss.detach()

    def train(self, optimizer: Optimizer, steps: int) -> list[Tensor]:
        for _ in range(steps):
            self.backward()
            optimizer.step()
        return self.values()

    def values(self) -> list[Tensor]:
        return [p.detach().clone() for p in self.params]

    def load(self, values: Iterable[Tensor]) -> None:
        with torch.no_grad():
            for p, value in zip(self.params, values, strict=True):
                p.copy_(value)


def _polar(G: Tensor) -> Tensor:
    U, _, Vh = torch.linalg.svd(G.to(torch.float64), full_matrices=False)
    return (U @ Vh).to(G.dtype)


def _row_normalized(G: Tensor) -> Tensor:
    return G / torch.linalg.vector_norm(G, dim=1, keepdim=True).clamp_min(0.01)


def _equalized(G: Tensor) -> bool:
    singular = torch.linalg.svdvals(G.to(torch.float64))
    return torch.allclose(singular, torch.ones_like(singular), atol=1e-4)


def _through_file(state_dict: dict[str, Any]) -> dict[str, Any]:
    file = io.BytesIO()
    torch.save(state_dict, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


@contextmanager
def _noting_case(case: object) -> Iterator[None]:
    try:
        yield
    except Exception as error:
        error.add_note(f"with {case}")
        raise


# -- the checks -------------------------------------------------------------------------------------------------------


class TestOutsider(TestCase):
    @classmethod
    def setUpClass(cls) -> None:
        super().setUpClass()
        cls._threads = torch.get_num_threads()
        torch.set_num_threads(1)

    @classmethod
    def tearDownClass(cls) -> None:
        torch.set_num_threads(cls._threads)
        super().tearDownClass()

    def assertSame(self, actual: Any, expected: Any) -> None:  # noqa: N802
        """Equal bit for bit."""
        self.assertEqual(actual, expected, rtol=0, atol=0)

    # direction

    @optims(ROWS)
    def test_the_loss_changes_in_the_requested_direction(
        self, device: str, dtype: torch.dtype, optim_info: OptimizerInfo
    ) -> None:
        for row in _inputs(optim_info, device, dtype):
            for layout in _layouts(row.kwargs):
                with _noting_case((row, layout)):
                    self._check_direction(optim_info, Problem(device, dtype, layout), row.kwargs)

    @optims(ROWS)
    def test_the_loss_changes_in_the_requested_direction_with_each_scheduler(
        self, device: str, dtype: torch.dtype, optim_info: OptimizerInfo
    ) -> None:
        for row in optim_info.optim_inputs_func(device=device):
            for number, schedulers in enumerate(optim_info.scheduler_inputs):
                with _noting_case((row, f"scheduler_inputs[{number}]")):
                    layout = LAYOUTS[number % len(LAYOUTS)]
                    self._check_direction(optim_info, Problem(device, dtype, layout), row.kwargs, schedulers)

    def _check_direction(
        self,
        info: OptimizerInfo,
        problem: Problem,
        kwargs: Mapping[str, Any],
        schedulers: Iterable[Callable[..., Any]] = (),
    ) -> None:
        optimizer = _make(info, problem.params, kwargs)
        scheduling = [scheduler(optimizer) for scheduler in schedulers]
        up = 1 if kwargs.get("maximize") else -1
        plain_egd = info.optim_cls is EGD and not kwargs.keys() & {"momentum", "weight_decay", "transform"}
        before = problem.values()
        initial = problem.backward()
        slopes = [p.grad.clone() for p in problem.params]
        for step in range(12):
            weight, lr = problem.weight.detach().clone(), float(optimizer.param_groups[0]["lr"])
            loss = problem.backward()
            optimizer.step()
            if plain_egd:
                speeds = torch.linalg.svdvals((problem.weight.detach() - weight).double())
                self.assertEqual(speeds, torch.full_like(speeds, lr), rtol=0, atol=1e-6)
            if step == 0:
                for p, start, slope in zip(problem.params, before, slopes, strict=True):
                    self.assertGreater(up * float(((p.detach() - start) * slope).sum()), 0)
            for scheduler in scheduling:
                scheduler.step(loss) if isinstance(scheduler, ReduceLROnPlateau) else scheduler.step()
        self.assertGreater(up * float(problem.backward() - initial), 0)

    @optims(ROWS, dtypes=[torch.float32, torch.float64])
    def test_a_step_equals_that_of_the_bare_optimizer_on_transformed_gradients(
        self, device: str, dtype: torch.dtype, optim_info: OptimizerInfo
    ) -> None:
        for row in _inputs(optim_info, device, dtype):
            kwargs = copy.deepcopy(row.kwargs)
            transform = kwargs.pop("transform", Polar())
            if isinstance(transform, LowRankPolar):
                continue
            with _noting_case(row):
                ours, theirs = Problem(device, dtype), Problem(device, dtype)
                optimizer = _make(optim_info, ours.params, row.kwargs)
                decay = kwargs.pop("decay_before", 0.0) * (-1 if kwargs.get("maximize") else 1)
                bare = BARE[optim_info.optim_cls](theirs.params, **kwargs)
                means = [torch.zeros_like(p) for p in theirs.params]
                for _ in range(4):
                    for p, q, mean in zip(ours.params, theirs.params, means, strict=True):
                        G = torch.randn_like(p)
                        p.grad = G.clone()
                        if q.ndim == 2:
                            G = G + decay * q.detach()
                        if isinstance(transform, tuple):
                            G = mean.mul_(0.9).add_(G, alpha=0.1).clone()
                        if q.ndim == 2:
                            G = _row_normalized(G) if isinstance(transform, RowNorm) else _polar(G)
                        q.grad = G
                    optimizer.step()
                    bare.step()
                    self.assertEqual(ours.values(), theirs.values())

    # steps without effect

    @optims(ROWS)
    def test_a_step_without_gradients_changes_nothing(
        self, device: str, dtype: torch.dtype, optim_info: OptimizerInfo
    ) -> None:
        for row in _inputs(optim_info, device, dtype):
            with _noting_case(row):
                problem = Problem(device, dtype)
                before = problem.values()
                optimizer = _make(optim_info, problem.params, row.kwargs)
                for _ in range(3):
                    optimizer.step()
                self.assertSame(problem.values(), before)
                self.assertEqual([p.grad for p in problem.params], [None, None])
                self.assertFalse(optimizer.state_dict()["state"])

    @optims(ROWS)
    def test_a_step_with_zero_gradients_changes_nothing(
        self, device: str, dtype: torch.dtype, optim_info: OptimizerInfo
    ) -> None:
        for row in _inputs(optim_info, device, dtype):
            with _noting_case(row):
                problem = Problem(device, dtype)
                before = problem.values()
                without = {"weight_decay": 0.0, **({"decay_before": 0.0} if optim_info.optim_cls is EGD else {})}
                optimizer = _make(optim_info, problem.params, {**row.kwargs, **without})
                for _ in range(3):
                    for p in problem.params:
                        p.grad = torch.zeros_like(p)
                    optimizer.step()
                self.assertSame(problem.values(), before)

    @optims(ROWS)
    def test_a_zero_gradient_among_others_changes_nothing(
        self, device: str, dtype: torch.dtype, optim_info: OptimizerInfo
    ) -> None:
        problem = Problem(device, dtype)
        weight, bias = problem.values()
        optimizer = _make(optim_info, problem.params, {"weight_decay": 0.0})
        problem.weight.grad, problem.bias.grad = torch.zeros_like(weight), torch.ones_like(bias)
        optimizer.step()
        self.assertSame(problem.weight.detach(), weight)
        self.assertTrue((problem.bias < bias).all())

    @optims(ROWS)
    def test_a_parameter_without_entries_is_accepted(
        self, device: str, dtype: torch.dtype, optim_info: OptimizerInfo
    ) -> None:
        for shape in ((3, 0), (0, 3), (0,)):
            with _noting_case(shape):
                problem = Problem(device, dtype)
                empty = nn.Parameter(torch.empty(shape, device=device, dtype=dtype))
                optimizer = _make(optim_info, [empty, *problem.params], {})
                before = problem.values()
                problem.backward()
                empty.grad = torch.zeros_like(empty)
                optimizer.step()
                self.assertTrue(_equalized(problem.weight.grad))
                self.assertNotEqual(problem.values(), before)

    # state_dict

    @optims(ROWS)
    def test_a_loaded_run_continues_bit_for_bit(self, device: str, dtype: torch.dtype, optim_info: OptimizerInfo) -> None:
        for row in _inputs(optim_info, device, dtype):
            with _noting_case(row):
                problem = Problem(device, dtype)
                optimizer = _make(optim_info, problem.params, row.kwargs)
                values = problem.train(optimizer, 3)
                saved = _through_file(optimizer.state_dict())  # loading does not copy, and steps write into the state
                self.assertSame(saved, optimizer.state_dict())
                if optim_info.optim_cls is EGD:
                    self.assertEqual([group["egd_steps"] for group in saved["param_groups"]], [3])
                expected = problem.train(optimizer, 3)
                for _ in range(2):
                    resumed = Problem(device, dtype, seed=1)
                    resumed.inputs, resumed.targets = problem.inputs, problem.targets
                    resumed.load(values)
                    fresh = _make(optim_info, resumed.params, row.kwargs)
                    fresh.load_state_dict(copy.deepcopy(saved))
                    self.assertSame(fresh.state_dict(), saved)
                    self.assertSame(resumed.train(fresh, 3), expected)
                    self.assertSame(fresh.state_dict(), optimizer.state_dict())

    @optims(ROWS)
    def test_an_older_state_dict_loads(self, device: str, dtype: torch.dtype, optim_info: OptimizerInfo) -> None:
        newer = [*optim_info.not_og_supported_flags, "equalize", "decay_before", "egd_steps"]
        problem = Problem(device, dtype)
        optimizer = _make(optim_info, problem.params, {})
        values = problem.train(optimizer, 2)
        saved = _through_file(optimizer.state_dict())
        expected = problem.train(optimizer, 2)
        for absent in [[key] for key in newer] + [newer]:
            with _noting_case(f"a state_dict without {absent}"):
                older = copy.deepcopy(saved)
                for group in older["param_groups"]:
                    for key in absent:
                        group.pop(key, None)
                resumed = Problem(device, dtype)
                resumed.load(values)
                fresh = _make(optim_info, resumed.params, {})
                fresh.load_state_dict(older)
                self.assertSame(resumed.train(fresh, 2), expected)

    @optims(EGD_ROW)
    def test_a_state_dict_of_sgd_loads(self, device: str, dtype: torch.dtype, optim_info: OptimizerInfo) -> None:
        kwargs = {"lr": 0.01, "momentum": 0.9, "weight_decay": 0.1}
        theirs, ours = Problem(device, dtype), Problem(device, dtype)
        sgd = torch.optim.SGD(theirs.params, **kwargs)
        values = theirs.train(sgd, 3)
        ours.load(values)
        optimizer = EGD(ours.params, lr=1.0)
        optimizer.load_state_dict(_through_file(sgd.state_dict()))
        self.assertSame(optimizer.state[ours.weight]["momentum_buffer"], sgd.state[theirs.weight]["momentum_buffer"])
        attach(sgd, matrices({"weight": theirs.weight}, include="*")).on()  # in the middle of a run
        self.assertSame(ours.train(optimizer, 3), theirs.train(sgd, 3))

        back = torch.optim.SGD(theirs.params, lr=1.0)
        back.load_state_dict(_through_file(optimizer.state_dict()))
        theirs.load(ours.values())
        for problem in (ours, theirs):
            problem.backward()
            problem.weight.grad = _polar(problem.weight.grad)
        optimizer.step()
        back.step()
        self.assertEqual(theirs.values(), ours.values())

    @optims(EGD_ROW)
    def test_a_state_dict_of_sgd_keeps_the_settings_of_egd(
        self, device: str, dtype: torch.dtype, optim_info: OptimizerInfo
    ) -> None:
        weight, embedding = (nn.Parameter(torch.randn(3, 4, device=device, dtype=dtype)) for _ in range(2))
        sgd = torch.optim.SGD([{"params": [weight]}, {"params": [embedding]}], lr=0.1)
        optimizer = EGD([{"params": [weight], "decay_before": 0.5}, {"params": [embedding], "equalize": False}], lr=0.1)
        optimizer.load_state_dict(sgd.state_dict())
        G = torch.randn_like(embedding)
        embedding.grad = G.clone()
        weight.grad = torch.zeros_like(weight)
        before = weight.detach().clone()
        optimizer.step()
        self.assertSame(embedding.grad, G)
        self.assertEqual(weight.grad, _polar(before))

    @optims(ROWS)
    def test_parameter_names_are_kept(self, device: str, dtype: torch.dtype, optim_info: OptimizerInfo) -> None:
        names = ["weight", "bias"]

        def make(named: bool) -> tuple[Problem, Optimizer]:
            problem = Problem(device, dtype)
            params = list(zip(names, problem.params, strict=True)) if named else problem.params
            return problem, _make(optim_info, params, {})

        saved = {}
        for named in (True, False):
            problem, optimizer = make(named)
            problem.train(optimizer, 2)
            saved[named] = _through_file(optimizer.state_dict())
            self.assertEqual(saved[named]["param_groups"][0].get("param_names"), names if named else None)
        for saved_named in (True, False):
            for named in (True, False):
                with _noting_case((saved_named, named)):
                    problem, optimizer = make(named)
                    optimizer.load_state_dict(saved[saved_named])
                    kept = names if saved_named or named else None
                    self.assertEqual(optimizer.state_dict()["param_groups"][0].get("param_names"), kept)
                    problem.train(optimizer, 1)
                    self.assertTrue(_equalized(problem.weight.grad))

    @optims(EGD_ROW)
    def test_names_are_those_of_the_plan(self, device: str, dtype: torch.dtype, optim_info: OptimizerInfo) -> None:
        problem = Problem(device, dtype)
        plan = matrices({"layer.weight": problem.weight, "layer.bias": problem.bias}, include="*")
        optimizer = EGD(plan, lr=0.01)
        self.assertEqual(optimizer.state_dict()["param_groups"][0]["param_names"], ["layer.weight", "layer.bias"])

    @optims(EGD_ROW)
    def test_two_parameters_of_one_name_have_separate_memories(
        self, device: str, dtype: torch.dtype, optim_info: OptimizerInfo
    ) -> None:
        """torch.optim accepts equal names, as from two models in one optimizer."""
        together, alone = ([Problem(device, dtype, seed=seed) for seed in range(2)] for _ in range(2))
        transform = (Momentum(0.9), Polar())
        one = EGD([("weight", problem.weight) for problem in together], lr=0.01, transform=transform)
        each = [EGD([problem.weight], lr=0.01, transform=transform) for problem in alone]
        for _ in range(3):
            for problem in (*together, *alone):
                problem.backward()
            for optimizer in (one, *each):
                optimizer.step()
        self.assertSame([p.values() for p in together], [p.values() for p in alone])

    @optims(ATTACHED_SGD_ROW)
    def test_two_parameters_of_one_name_have_separate_memories_when_attached(
        self, device: str, dtype: torch.dtype, optim_info: OptimizerInfo
    ) -> None:
        """The plan has the first only; the second has its name from the optimizer."""
        together, alone = ([Problem(device, dtype, seed=seed) for seed in range(2)] for _ in range(2))
        transform = (Momentum(0.9), Polar())
        one = torch.optim.SGD([("weight", problem.weight) for problem in together], lr=0.01)
        each = [torch.optim.SGD([problem.weight], lr=0.01) for problem in alone]
        attach(one, matrices({"weight": together[0].weight}, include="*"), transform)
        attach(each[0], matrices({"weight": alone[0].weight}, include="*"), transform)
        attach(each[1], matrices({"weight": alone[1].weight}, include="*"), Momentum(0.9))
        for _ in range(3):
            for problem in (*together, *alone):
                problem.backward()
            for optimizer in (one, *each):
                optimizer.step()
        self.assertSame([p.values() for p in together], [p.values() for p in alone])

    @optims(ATTACHED_ROWS)
    def test_an_attachment_with_a_memory_resumes(self, device: str, dtype: torch.dtype, optim_info: OptimizerInfo) -> None:
        self._check_resuming(BARE[optim_info.optim_cls], Problem(device, dtype), Problem(device, dtype), added=False)

    @optims(ATTACHED_ROWS)
    def test_an_attachment_with_a_memory_resumes_with_a_group_added_later(
        self, device: str, dtype: torch.dtype, optim_info: OptimizerInfo
    ) -> None:
        self._check_resuming(BARE[optim_info.optim_cls], Problem(device, dtype), Problem(device, dtype), added=True)

    def _check_resuming(self, bare: type[Optimizer], original: Problem, resumed: Problem, added: bool) -> None:
        def build(problem: Problem) -> tuple[Optimizer, Attachment]:
            first, *later = [[problem.weight], [problem.bias]] if added else [problem.params]
            model = nn.ParameterDict({"weight": problem.weight, "bias": problem.bias})
            optimizer = bare(first, lr=0.01)
            attachment = attach(optimizer, matrices(model, include="*"), (GrokfastEMA(), Momentum(0.9), Polar()))
            for params in later:
                optimizer.add_param_group({"params": params})
            return optimizer, attachment

        optimizer, attachment = build(original)
        resumed.load(original.train(optimizer, 3))
        saved = _through_file({"optimizer": optimizer.state_dict(), "egd": attachment.state_dict()})
        fresh, fresh_attachment = build(resumed)
        fresh.load_state_dict(saved["optimizer"])
        fresh_attachment.load_state_dict(saved["egd"])
        self.assertSame(resumed.train(fresh, 3), original.train(optimizer, 3))
        self.assertSame(fresh_attachment.state_dict(), attachment.state_dict())

    # hooks

    @optims(ROWS)
    def test_step_hooks_fire_once_and_in_order(self, device: str, dtype: torch.dtype, optim_info: OptimizerInfo) -> None:
        problem = Problem(device, dtype)
        optimizer = _make(optim_info, problem.params, {})
        events: list[str] = []

        def noting(event: str) -> Callable[..., None]:
            def hook(optim: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
                self.assertIs(optim, optimizer)
                self.assertIs(args[0], optimizer)
                moved = not torch.equal(problem.weight.detach(), before)
                events.append(f"{event}, {'after' if moved else 'before'}")

            return hook

        def closure() -> Tensor:
            events.append("closure")
            return problem.backward()

        handles = [
            register_optimizer_step_post_hook(noting("post global")),
            register_optimizer_step_pre_hook(noting("pre global")),
            optimizer.register_step_post_hook(noting("post 1")),
            optimizer.register_step_pre_hook(noting("pre 1")),
            optimizer.register_step_pre_hook(noting("pre 2")),
            optimizer.register_step_post_hook(noting("post 2")),
        ]
        before_hooks = ["pre global, before", "pre 1, before", "pre 2, before"]
        after_hooks = ["post 1, after", "post 2, after", "post global, after"]
        try:
            for with_closure in (False, True, True, False):
                events.clear()
                problem.backward()
                before = problem.weight.detach().clone()
                optimizer.step(*([closure] if with_closure else []))
                self.assertEqual(events, [*before_hooks, *(["closure"] if with_closure else []), *after_hooks])
        finally:
            for handle in handles:
                handle.remove()
        events.clear()
        problem.train(optimizer, 1)
        self.assertEqual(events, [])
        self.assertTrue(_equalized(problem.weight.grad))

    @optims(ROWS)
    def test_later_hooks_see_the_equalised_gradient(
        self, device: str, dtype: torch.dtype, optim_info: OptimizerInfo
    ) -> None:
        """A hook added after attaching sees what the optimizer will see; EGD equalises inside its step."""
        problem = Problem(device, dtype)
        optimizer = _make(optim_info, problem.params, {})
        seen: list[bool] = []

        def look(*_: Any) -> None:
            seen.append(_equalized(problem.weight.grad))

        optimizer.register_step_pre_hook(look)
        optimizer.register_step_post_hook(look)
        problem.train(optimizer, 1)
        self.assertEqual(seen, [optim_info.optim_cls is not EGD, True])

    @optims(ROWS)
    def test_state_dict_hooks_fire(self, device: str, dtype: torch.dtype, optim_info: OptimizerInfo) -> None:
        problem = Problem(device, dtype)
        optimizer = _make(optim_info, problem.params, {})
        problem.train(optimizer, 1)
        events: list[str] = []

        def saved(_: Optimizer, state_dict: dict[str, Any]) -> dict[str, Any]:
            events.append("saved")
            return {**state_dict, "more": 1}

        def loading(_: Optimizer, state_dict: dict[str, Any]) -> dict[str, Any]:
            events.append(f"loading more={state_dict.pop('more')}")
            state_dict["param_groups"][0]["lr"] = 0.25
            return state_dict

        handles = [
            optimizer.register_state_dict_pre_hook(lambda _: events.append("saving 2")),
            optimizer.register_state_dict_pre_hook(lambda _: events.append("saving 1"), prepend=True),
            optimizer.register_state_dict_post_hook(saved),
            optimizer.register_load_state_dict_pre_hook(loading),
            optimizer.register_load_state_dict_post_hook(lambda _: events.append("loaded")),
        ]
        optimizer.load_state_dict(optimizer.state_dict())
        self.assertEqual(events, ["saving 1", "saving 2", "saved", "loading more=1", "loaded"])
        self.assertEqual(optimizer.param_groups[0]["lr"], 0.25)
        for handle in handles:
            handle.remove()
        optimizer.load_state_dict(optimizer.state_dict())
        self.assertEqual(len(events), 5)
        problem.train(optimizer, 1)
        self.assertTrue(_equalized(problem.weight.grad))

    # errors

    @optims(ROWS)
    def test_invalid_arguments_are_refused(self, device: str, dtype: torch.dtype, optim_info: OptimizerInfo) -> None:
        for row in optim_info.optim_error_inputs_func(device=device, dtype=dtype):
            wrong = row.optimizer_error_input
            params = [nn.Parameter(torch.randn(2, 3, device=device, dtype=dtype))] if wrong.params is None else wrong.params
            caught = self.assertWarnsRegex if issubclass(row.error_type, Warning) else self.assertRaisesRegex
            with _noting_case(wrong.desc):
                if row.error_on is OptimizerErrorEnum.CONSTRUCTION_ERROR:
                    with caught(row.error_type, row.error_regex):
                        _make(optim_info, params, wrong.kwargs)
                else:
                    optimizer = _make(optim_info, params, wrong.kwargs)
                    with caught(row.error_type, row.error_regex):
                        optimizer.step()

    @optims(ATTACHED_ROWS)
    def test_differentiable_is_refused(self, device: str, dtype: torch.dtype, optim_info: OptimizerInfo) -> None:
        self.assertIn("differentiable", optim_info.supported_impls)
        for row in optim_info.optim_inputs_func(device=device):
            with (
                _noting_case(row),
                self.assertRaisesRegex(ValueError, "^optimizer must not be differentiable, got differentiable=True"),
            ):
                _make(optim_info, Problem(device, dtype).params, {**row.kwargs, "differentiable": True})

    @optims(ROWS)
    def test_a_sparse_gradient_is_refused(self, device: str, dtype: torch.dtype, optim_info: OptimizerInfo) -> None:
        problem = Problem(device, dtype)
        before = problem.values()
        optimizer = _make(optim_info, problem.params, {})
        problem.backward()
        problem.weight.grad = problem.weight.grad.to_sparse()
        with self.assertRaisesRegex(TypeError, "^the gradient of .* must be dense"):
            optimizer.step()
        self.assertSame(problem.values(), before)

    @optims(EGD_ROW)
    def test_a_refused_group_changes_nothing(self, device: str, dtype: torch.dtype, optim_info: OptimizerInfo) -> None:
        problem = Problem(device, dtype)
        optimizer = EGD(problem.params, lr=0.01)
        complex_matrix = nn.Parameter(torch.randn(2, 3, device=device, dtype=torch.complex64))
        for group, kind in (
            ({"params": [complex_matrix]}, TypeError),
            ({"params": [problem.weight]}, ValueError),
            ({"params": [nn.Parameter(problem.weight.detach())], "equalize": "no"}, ValueError),
        ):
            with _noting_case(group), self.assertRaises(kind):
                optimizer.add_param_group(group)
        self.assertEqual(len(optimizer.param_groups), 1)
        before = problem.values()
        self.assertNotEqual(problem.train(optimizer, 1), before)

    # implementations

    @optims(ROWS, dtypes=[torch.float32, torch.float64])
    def test_foreach_and_fused_match_the_for_loop(self, device: str, dtype: torch.dtype, optim_info: OptimizerInfo) -> None:
        faster = [impl for impl in ("foreach", "fused") if impl in optim_info.supported_impls]
        faster = [impl for impl in faster if impl == "foreach" or device in optim_info.supports_fused_on]
        self.assertIn("foreach", faster)
        for row in optim_info.optim_inputs_func(device=device):
            for layout in LAYOUTS:
                slow = Problem(device, dtype, layout)
                slow_optimizer = _make(optim_info, slow.params, {**row.kwargs, "foreach": False})
                slow.train(slow_optimizer, 5)
                for impl in faster:
                    if layout not in _layouts({impl: True}):
                        continue
                    with _noting_case((row, layout, impl)):
                        fast = Problem(device, dtype, layout)
                        fast_optimizer = _make(optim_info, fast.params, {**row.kwargs, impl: True})
                        self.assertEqual(fast.train(fast_optimizer, 5), slow.values())
                        self.assertEqual(fast_optimizer.state_dict()["state"], slow_optimizer.state_dict()["state"])

    @optims(ROWS)
    def test_a_tensor_lr_equals_a_number(self, device: str, dtype: torch.dtype, optim_info: OptimizerInfo) -> None:
        for row in optim_info.optim_inputs_func(device=device):
            with _noting_case(row):
                outcomes = []
                for lr in (0.02, torch.tensor(0.02), torch.tensor([0.02])):
                    problem = Problem(device, dtype)
                    optimizer = _make(optim_info, problem.params, {**row.kwargs, "lr": lr, "foreach": False})
                    problem.train(optimizer, 2)
                    group = optimizer.param_groups[0]
                    group["lr"] = group["lr"].mul_(0.5) if isinstance(lr, Tensor) else lr / 2
                    outcomes.append(problem.train(optimizer, 2))
                self.assertEqual(outcomes[1:], [outcomes[0]] * 2)

    @optims(ROWS)
    def test_parameters_of_several_dtypes_equal_separate_optimizers(
        self, device: str, dtype: torch.dtype, optim_info: OptimizerInfo
    ) -> None:
        dtypes = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
        for row in _inputs(optim_info, device, dtype):
            with _noting_case(row):
                together, alone = ([Problem(device, each) for each in dtypes] for _ in range(2))
                one = _make(optim_info, [p for problem in together for p in problem.params], row.kwargs)
                several = [_make(optim_info, problem.params, row.kwargs) for problem in alone]
                before = [problem.values() for problem in together]
                for problem in (*together, *alone):
                    problem.backward()
                for optimizer in (one, *several):
                    optimizer.step()
                for ours, theirs, start in zip(together, alone, before, strict=True):
                    if not isinstance(row.kwargs.get("transform"), LowRankPolar):  # its sketch depends on the name
                        self.assertEqual(ours.values(), theirs.values())
                    self.assertEqual([p.dtype for p in ours.params], [start[0].dtype] * 2)
                    if start[0].dtype in (torch.float64, torch.float32):  # in the others a step of 0.001 rounds to zero
                        self.assertFalse(torch.equal(ours.weight.detach(), start[0]))

    # closures

    @optims(ROWS)
    def test_a_closure_computes_the_gradients_first(
        self, device: str, dtype: torch.dtype, optim_info: OptimizerInfo
    ) -> None:
        for row in _inputs(optim_info, device, dtype):
            with _noting_case(row):
                plain, positional, keyword = (Problem(device, dtype) for _ in range(3))
                a, b, c = (_make(optim_info, problem.params, row.kwargs) for problem in (plain, positional, keyword))
                for _ in range(4):
                    expected = plain.backward()
                    self.assertIsNone(a.step())
                    self.assertSame(b.step(positional.backward), expected)
                    with torch.no_grad():
                        self.assertSame(c.step(closure=keyword.backward), expected)
                    self.assertSame(positional.values(), plain.values())
                    self.assertSame(keyword.values(), plain.values())
                plain.backward()
                a.step(None)
                b.step(closure=positional.backward)
                self.assertSame(positional.values(), plain.values())

    # copies

    @optims(ROWS)
    def test_a_deepcopy_keeps_the_public_attributes(
        self, device: str, dtype: torch.dtype, optim_info: OptimizerInfo
    ) -> None:
        for row in _inputs(optim_info, device, dtype):
            with _noting_case(row):
                problem = Problem(device, dtype)
                optimizer = _make(optim_info, problem.params, row.kwargs)
                problem.train(optimizer, 2)
                copied = self._copied(optim_info, copy.deepcopy, optimizer)
                public = {name for name in vars(optimizer) if not name.startswith("_")}
                self.assertEqual({name for name in vars(copied) if not name.startswith("_")}, public)
                bare = {name: value for name, value in optimizer.state_dict().items() if name != "egalitarian"}
                self.assertSame(copied.state_dict(), bare)
                self.assertEqual(copied.defaults, optimizer.defaults)

    def _copied(self, info: OptimizerInfo, how: Callable[[Any], Any], value: Any) -> Any:
        """A copy. EGD must not warn; an attached optimizer must warn that the copy is bare."""
        if info.optim_cls is EGD:
            return how(value)
        with self.assertWarnsRegex(UserWarning, "a copy or pickle of this optimizer does not include the EGD"):
            return how(value)

    @optims(ROWS)
    def test_copies_and_pickles_continue(self, device: str, dtype: torch.dtype, optim_info: OptimizerInfo) -> None:
        """A copy of EGD continues bit for bit; a copy of an attached optimizer continues as the bare one."""

        def pickled(value: Any) -> Any:
            return pickle.loads(pickle.dumps(value))

        def saved(value: Any) -> Any:
            file = io.BytesIO()
            torch.save(value, file)
            file.seek(0)
            return torch.load(file, weights_only=False)

        for row in _inputs(optim_info, device, dtype):
            for how in (copy.deepcopy, pickled, saved):
                with _noting_case((row, how)):
                    problem = Problem(device, dtype)
                    optimizer = _make(optim_info, problem.params, row.kwargs)
                    values = problem.train(optimizer, 2)
                    twin, twin_optimizer = self._copied(optim_info, how, (problem, optimizer))
                    self.assertIs(twin_optimizer.param_groups[0]["params"][0], twin.weight)
                    if optim_info.optim_cls is not EGD:
                        saved_state = optimizer.state_dict()
                        problem = Problem(device, dtype)
                        problem.load(values)
                        optimizer = BARE[optim_info.optim_cls](problem.params, **copy.deepcopy(row.kwargs))
                        optimizer.load_state_dict(saved_state)
                    self.assertSame(twin.train(twin_optimizer, 3), problem.train(optimizer, 3))
                    self.assertSame(twin_optimizer.state_dict(), optimizer.state_dict())
                    self.assertEqual(_equalized(twin.weight.grad), optim_info.optim_cls is EGD and _full_polar(row))

    # groups

    @optims(ROWS)
    def test_groups_equal_separate_optimizers(self, device: str, dtype: torch.dtype, optim_info: OptimizerInfo) -> None:
        settings: list[dict[str, Any]] = [
            {},
            {"lr": 0.05},
            {"lr": 0.0},
            {"weight_decay": 0.3},
            {"lr": 0.03, "maximize": True},
        ]
        if optim_info.optim_cls is EGD:
            settings += [{"decay_before": 0.7}, {"momentum": 0.5, "nesterov": True}]
        for row in _inputs(optim_info, device, dtype):
            if isinstance(row.kwargs.get("transform"), LowRankPolar):
                continue
            with _noting_case(row):
                together, alone = ([Problem(device, dtype, seed=i) for i in range(len(settings))] for _ in range(2))
                groups = [{"params": p.params, **setting} for p, setting in zip(together, settings, strict=True)]
                one = _make(optim_info, groups, row.kwargs)
                several = [
                    _make(optim_info, p.params, {**row.kwargs, **setting})
                    for p, setting in zip(alone, settings, strict=True)
                ]
                for _ in range(3):
                    for problem in (*together, *alone):
                        problem.backward()
                    for optimizer in (one, *several):
                        optimizer.step()
                self.assertEqual([p.values() for p in together], [p.values() for p in alone])

    @optims(ROWS)
    def test_a_group_has_its_own_lr_and_decay(self, device: str, dtype: torch.dtype, optim_info: OptimizerInfo) -> None:
        fast, still, decayed = (Problem(device, dtype) for _ in range(3))
        groups = [
            {"params": fast.params},
            {"params": still.params, "lr": 0.0},
            {"params": decayed.params, "weight_decay": 9.0},
        ]
        optimizer = _make(optim_info, groups, {"lr": 0.02, "weight_decay": 0.0})
        before = fast.values()
        for problem in (fast, still, decayed):
            problem.backward()
        optimizer.step()
        self.assertSame(still.values(), before)
        self.assertNotEqual(fast.values(), before)
        self.assertNotEqual(decayed.values(), fast.values())
        if BARE[optim_info.optim_cls] is torch.optim.SGD:
            self.assertEqual(fast.weight.detach(), before[0] - 0.02 * fast.weight.grad)
            self.assertEqual(decayed.weight.detach(), before[0] - 0.02 * (fast.weight.grad + 9 * before[0]))
            self.assertTrue(_equalized(fast.weight.grad))

    @optims(EGD_ROW)
    def test_a_group_with_equalize_false_takes_plain_steps(
        self, device: str, dtype: torch.dtype, optim_info: OptimizerInfo
    ) -> None:
        for row in optim_info.optim_inputs_func(device=device):
            if isinstance(row.kwargs.get("transform"), tuple):  # its momentum acts on every parameter
                continue
            with _noting_case(row):
                equalized, left, expected = Problem(device, dtype), Problem(device, dtype), Problem(device, dtype)
                groups = [{"params": equalized.params}, {"params": left.params, "equalize": False}]
                optimizer = _make(optim_info, groups, row.kwargs)
                theirs = {key: value for key, value in row.kwargs.items() if key not in ("transform", "decay_before")}
                sgd = torch.optim.SGD(expected.params, **copy.deepcopy(theirs))
                for _ in range(3):
                    equalized.backward()
                    left.train(optimizer, 1)
                    expected.train(sgd, 1)
                self.assertSame(left.values(), expected.values())
                self.assertNotEqual(equalized.values(), expected.values())

    @optims(ROWS)
    def test_a_group_added_later_equals_a_separate_optimizer(
        self, device: str, dtype: torch.dtype, optim_info: OptimizerInfo
    ) -> None:
        """EGD equalises it. An attached plan lacks it, so it takes plain steps, after a warning."""
        for row in _inputs(optim_info, device, dtype):
            if isinstance(row.kwargs.get("transform"), LowRankPolar):
                continue
            with _noting_case(row):
                first, first_alone = Problem(device, dtype), Problem(device, dtype)
                second, second_alone = Problem(device, dtype, seed=1), Problem(device, dtype, seed=1)
                optimizer = _make(optim_info, first.params, row.kwargs)
                first.train(optimizer, 2)
                optimizer.add_param_group({"params": second.params, "lr": 0.04})
                for number in range(3):
                    first.backward()
                    second.backward()
                    warns = number == 0 and optim_info.optim_cls is not EGD
                    with pytest.warns(UserWarning, match="not equalised") if warns else nullcontext():
                        optimizer.step()
                first_alone.train(_make(optim_info, first_alone.params, row.kwargs), 5)
                group = [{"params": second_alone.params, "lr": 0.04}]
                bare = BARE[optim_info.optim_cls]
                alone = (
                    _make(optim_info, group, row.kwargs)
                    if optim_info.optim_cls is EGD
                    else bare(group, **copy.deepcopy(row.kwargs))
                )
                second_alone.train(alone, 3)
                self.assertEqual(first.values(), first_alone.values())
                self.assertEqual(second.values(), second_alone.values())

    @optims(ATTACHED_ROWS)
    def test_a_group_of_the_attached_model_added_later_is_equalised(
        self, device: str, dtype: torch.dtype, optim_info: OptimizerInfo
    ) -> None:
        model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 4), nn.Linear(4, 6)).to(device, dtype)
        optimizer = BARE[optim_info.optim_cls](model[0].parameters(), lr=0.01)
        attach(optimizer, model)
        for added in (None, model[1], model[2]):
            if added is not None:
                optimizer.add_param_group({"params": added.parameters()})
            model.zero_grad()
            model(torch.randn(8, 3, device=device, dtype=dtype)).square().sum().backward()
            optimizer.step()
            held = {p for group in optimizer.param_groups for p in group["params"]}
            equalized = [layer.weight in held and layer is not model[2] for layer in model]
            self.assertEqual([_equalized(layer.weight.grad) for layer in model], equalized)

    @optims(EGD_ROW)
    def test_changed_settings_apply_from_the_next_step(
        self, device: str, dtype: torch.dtype, optim_info: OptimizerInfo
    ) -> None:
        """As for a changed lr. Saving and loading in between makes no difference."""
        for setting in ({"lr": 0.5}, {"weight_decay": 0.4}, {"maximize": True}, {"decay_before": 0.8}, {"equalize": False}):
            with _noting_case(setting):
                outcomes = []
                for how in ("given", "changed", "changed and loaded"):
                    problem = Problem(device, dtype)
                    changed = {} if how == "given" else setting
                    given = setting if how == "given" else {}
                    optimizer = EGD([{"params": problem.params, **given}], lr=0.01)
                    optimizer.param_groups[0].update(changed)
                    if how == "changed and loaded":
                        optimizer.load_state_dict(optimizer.state_dict())
                    outcomes.append(problem.train(optimizer, 2))
                self.assertSame(outcomes[2], outcomes[0])
                self.assertSame(outcomes[1], outcomes[0])

    @optims(ATTACHED_ROWS)
    def test_decay_before_follows_loaded_groups(self, device: str, dtype: torch.dtype, optim_info: OptimizerInfo) -> None:
        for loading in (False, True):
            with _noting_case("loaded" if loading else "not loaded"):
                problem = Problem(device, dtype)
                optimizer = BARE[optim_info.optim_cls](problem.params, lr=0.01)
                attach(optimizer, matrices({"weight": problem.weight}, include="*"), decay_before=0.5)
                if loading:
                    optimizer.load_state_dict(optimizer.state_dict())
                optimizer.param_groups[0]["maximize"] = True
                weight = problem.weight.detach().clone()
                problem.weight.grad = torch.zeros_like(weight)
                optimizer.step()
                self.assertEqual(problem.weight.grad, _polar(-weight))

    # representation, defaults, memory

    @optims(ROWS)
    def test_repr_lists_every_setting_of_every_group(
        self, device: str, dtype: torch.dtype, optim_info: OptimizerInfo
    ) -> None:
        for row in _inputs(optim_info, device, dtype):
            with _noting_case(row):
                problem = Problem(device, dtype)
                optimizer = _make(optim_info, [{"params": problem.weight}, {"params": problem.bias}], row.kwargs)
                problem.train(optimizer, 1)
                text = repr(optimizer)
                self.assertTrue(text.startswith(optim_info.name))
                self.assertEqual(text.count("Parameter Group"), 2)
                for key in optimizer.param_groups[0].keys() - {"params"}:
                    self.assertEqual(text.count(f"\n    {key}: "), 2)

    @optims(ROWS)
    def test_the_default_dtype_does_not_matter(self, device: str, dtype: torch.dtype, optim_info: OptimizerInfo) -> None:
        for row in _inputs(optim_info, device, dtype):
            expected = Problem(device, dtype)
            expected.train(_make(optim_info, expected.params, row.kwargs), 3)
            for default in (torch.float64, torch.float16):
                with _noting_case((row, default)), set_default_dtype(default):
                    problem = Problem(device, dtype)
                    optimizer = _make(optim_info, problem.params, row.kwargs)
                    self.assertSame(problem.train(optimizer, 3), expected.values())
                    for state in optimizer.state.values():
                        kept = [value.dtype for key, value in state.items() if key not in ("step", "egd.0.count")]
                        self.assertEqual(kept, [dtype] * len(kept))

    @optims(ROWS)
    def test_the_default_device_does_not_matter(self, device: str, dtype: torch.dtype, optim_info: OptimizerInfo) -> None:
        """The device "meta" represents an accelerator that is the default."""
        problem, expected = Problem(device, dtype), Problem(device, dtype)
        with torch.device("meta"):
            optimizer = _make(optim_info, problem.params, {})
        self.assertSame(problem.train(optimizer, 2), expected.train(_make(optim_info, expected.params, {}), 2))

    @optims(ROWS)
    def test_no_tensor_is_kept_between_steps(self, device: str, dtype: torch.dtype, optim_info: OptimizerInfo) -> None:
        runs = []
        for kwargs in ({}, {"foreach": True}, {"weight_decay": 0.1}):
            problem = Problem(device, dtype)
            runs.append((problem, _make(optim_info, problem.params, kwargs)))
        for problem, optimizer in runs:
            problem.train(optimizer, 2)
        before = _live_tensors()
        for problem, optimizer in runs:
            problem.train(optimizer, 50)
        self.assertLessEqual(_live_tensors(), before)
        if BARE[optim_info.optim_cls] is torch.optim.SGD:
            self.assertEqual([optimizer.state_dict()["state"] for _, optimizer in runs], [{}] * 3)


def _full_polar(row: OptimizerInput) -> bool:
    """Whether the row's transform makes every singular value 1."""
    return not isinstance(row.kwargs.get("transform"), LowRankPolar | RowNorm)


def _live_tensors() -> int:
    gc.collect()
    return sum(issubclass(type(thing), Tensor) for thing in gc.get_objects())


instantiate_device_type_tests(TestOutsider, globals(), only_for="cpu")
