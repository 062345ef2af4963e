"""Layers, transformer and CNN: started as torch's own modules are, computed as they are, alone and in a stack."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import ClassVar, NamedTuple

import pytest
import torch
from small import gradients
from torch import Tensor, nn

from egalitarian.lab.config.schema import SpecError
from egalitarian.lab.problems import (
    CIFAR10,
    CNN,
    MLP,
    MNIST,
    Data,
    Layers,
    Model,
    Modular,
    ModularSequence,
    Parity,
    Task,
    Transformer,
    stream,
)

SEEDS, POINTS = 3, 5
TOLERANCE = 1e-10


@dataclass(frozen=True, kw_only=True)
class Pictures(Task, kind="pictures-of-a-test"):
    """Images of noise, small enough for float64."""

    image: ClassVar[tuple[int, ...]] = (3, 8, 12)
    features = 3 * 8 * 12
    outputs = 10

    def build(self, seed: int) -> Data:
        raise NotImplementedError


class Block(nn.Module):
    """As in the Grokfast code."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attn = nn.MultiheadAttention(width, heads)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        mask = torch.full((len(x), len(x)), -math.inf, dtype=x.dtype).triu(1)
        x = self.ln_1(x)
        x = x + self.attn(x, x, x, attn_mask=mask, need_weights=False)[0]
        return x + self.mlp(self.ln_2(x))


class Decoder(nn.Module):
    def __init__(self, vocabulary: int, tokens: int, model: Transformer) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(vocabulary, model.width), nn.Embedding(tokens, model.width)
        self.layers = nn.ModuleList(Block(model.width, model.heads) for _ in range(model.depth))
        self.ln_f, self.head = nn.LayerNorm(model.width), nn.Linear(model.width, vocabulary, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        h = (self.tokens(x) + self.positions(torch.arange(x.shape[1]))).transpose(0, 1)
        for layer in self.layers:
            h = layer(h)
        return self.head(self.ln_f(h))[-1]


def sequential(task: Task, model: Layers) -> nn.Module:
    widths = (task.features, *model.widths, task.outputs)
    layers = [part for pair in pairwise(widths) for part in (nn.Linear(*pair), nn.ReLU())]
    return nn.Sequential(nn.Flatten(), *layers[:-1])


def convolutional(task: Task, model: CNN) -> nn.Module:
    layers: list[nn.Module] = []
    for index, pair in enumerate(pairwise((task.image[0], *model.channels)), 1):
        layers += [nn.Conv2d(*pair, 3, padding=1), nn.ReLU()]
        if index % model.block == 0:
            layers += [nn.MaxPool2d(2), nn.Dropout2d(model.dropout)]
    left = model.channels[-1] * math.prod(side >> len(model.channels) // model.block for side in task.image[1:])
    for pair in pairwise((left, *[model.width] * model.depth)):
        layers += [nn.Linear(*pair), nn.ReLU()]
    split = next(index for index, layer in enumerate(layers) if isinstance(layer, nn.Linear))
    return nn.Sequential(*layers[:split], nn.Flatten(), *layers[split:], nn.Linear(model.width, task.outputs))


IN_TORCH = {
    "norm1": "ln_1",
    "norm2": "ln_2",
    "attention": "attn.in_proj_",
    "mix": "attn.out_proj",
    "up": "mlp.0",
    "down": "mlp.2",
}


def name_in_torch(name: str) -> str:
    """Of a parameter of the transformer, in the module above."""
    *path, part = name.split(".")
    if path[0] != "blocks":
        return f"{'ln_f' if path[0] == 'norm' else path[0]}.{part}"
    inner = IN_TORCH[path[2]]
    return f"layers.{path[1]}.{inner}{'' if inner.endswith('_') else '.'}{part}"


class Case(NamedTuple):
    model: Model
    task: Task
    module: Callable[[], nn.Module]

    def names(self, start: dict[str, Tensor]) -> dict[str, str]:
        """Those of the module, by ours: in the same order, or by the table."""
        if isinstance(self.model, Transformer):
            return {name: name_in_torch(name) for name in start}
        return dict(zip(start, self.module().state_dict(), strict=True))

    def inputs(self, seed: int = 0, points: int = POINTS) -> Tensor:
        draw = stream(seed, "inputs")
        if self.task.tokens:
            return torch.randint(0, self.task.features, (SEEDS, points, self.task.tokens), generator=draw)
        shape = self.task.image or (self.task.features,)
        return torch.randn(SEEDS, points, *shape, generator=draw, dtype=torch.float64)

    def parameters(self, dtype: torch.dtype = torch.float64) -> dict[str, Tensor]:
        """A stack, moved away from the start, so that no bias is zero and no norm one."""
        starts = [self.model.start(self.task, seed) for seed in range(SEEDS)]
        stacks = {name: torch.stack([start[name] for start in starts]).to(dtype) for name in starts[0]}
        draw = stream(0, "moved")
        moved = {name: stack + 0.1 * torch.randn(stack.shape, generator=draw) for name, stack in stacks.items()}
        return {name: stack.to(dtype).requires_grad_() for name, stack in moved.items()}


FLAT = Parity(bits=6, secret_bits=2, train_size=4, test_size=4)
SEQUENCE = ModularSequence(operation="*", modulus=7)
PICTURES = Pictures()
LAYERS, DEEP, CONVOLUTIONS, BLOCKS = (
    Layers(widths=(5, 4)),
    Transformer(depth=2, width=12, heads=3),
    CNN(channels=(4, 6, 5), width=7),
    CNN(channels=(4, 6, 5, 3), block=2, dropout=0.4, width=7, depth=3, hidden="orthogonal"),
)
ONE_BLOCK = Transformer(depth=1, width=8, heads=1)
CASES = {
    "layers": Case(LAYERS, FLAT, lambda: sequential(FLAT, LAYERS)),
    "layers on images": Case(LAYERS, PICTURES, lambda: sequential(PICTURES, LAYERS)),
    "transformer": Case(DEEP, SEQUENCE, lambda: Decoder(9, 4, DEEP)),
    "transformer of one block": Case(ONE_BLOCK, SEQUENCE, lambda: Decoder(9, 4, ONE_BLOCK)),
    "cnn": Case(CONVOLUTIONS, PICTURES, lambda: convolutional(PICTURES, CONVOLUTIONS)),
    "cnn of blocks": Case(BLOCKS, PICTURES, lambda: convolutional(PICTURES, BLOCKS)),
}
each_case = pytest.mark.parametrize("case", CASES.values(), ids=CASES)


def assert_same(one: Tensor, other: Tensor) -> None:
    torch.testing.assert_close(one, other, rtol=TOLERANCE, atol=TOLERANCE)


# computing


@each_case
def test_a_stack_is_what_each_network_gives(case: Case) -> None:
    parameters, inputs = case.parameters(), case.inputs()
    fast, plain = case.model.forward(parameters, inputs), Model.forward(case.model, parameters, inputs)
    assert fast.shape == (SEEDS, POINTS, case.task.outputs)
    assert_same(fast, plain)
    for one, other in zip(gradients(fast, parameters), gradients(plain, parameters), strict=True):
        assert_same(one, other)


@each_case
def test_a_network_is_torchs_module(case: Case) -> None:
    parameters, inputs = case.parameters(), case.inputs()
    one = {name: stack.detach()[1].clone().requires_grad_() for name, stack in parameters.items()}
    module, names = case.module().double().eval(), case.names(one)
    module.load_state_dict({names[name]: tensor.detach() for name, tensor in one.items()})
    outputs, expected = case.model.one(one, inputs[1]), module(inputs[1])
    assert_same(outputs, expected)
    of_module = dict(module.named_parameters())
    theirs = gradients(expected, {name: of_module[names[name]] for name in one})
    for ours, its in zip(gradients(outputs, one), theirs, strict=True):
        assert_same(ours, its)


@each_case
def test_a_network_does_not_see_its_neighbours(case: Case) -> None:
    parameters, inputs = case.parameters(), case.inputs()
    before = case.model.forward(parameters, inputs)
    with torch.no_grad():
        for stack in parameters.values():
            stack[0] = math.nan
    after = case.model.forward(parameters, inputs)
    assert after[0].isnan().all()
    assert_same(before[1:], after[1:])


@each_case
def test_computing_changes_no_input_and_no_parameter_and_repeats_bitwise(case: Case) -> None:
    parameters, inputs = case.parameters(torch.float32), case.inputs()
    inputs = inputs.float() if inputs.is_floating_point() else inputs
    before = [tensor.detach().clone() for tensor in (inputs, *parameters.values())]
    first = gradients(case.model.forward(parameters, inputs), parameters)
    for _ in range(3):
        again = gradients(case.model.forward(parameters, inputs), parameters)
        assert all(torch.equal(one, other) for one, other in zip(first, again, strict=True))
    assert all(torch.equal(one, other) for one, other in zip(before, (inputs, *parameters.values()), strict=True))


class Recorded(nn.Module):
    """A `Dropout2d` that keeps what it multiplied its images by."""

    def __init__(self, share: float) -> None:
        super().__init__()
        self._share = share

    def forward(self, images: Tensor) -> Tensor:
        self.factors = nn.functional.dropout2d(torch.ones_like(images), self._share)
        return images * self.factors


def test_in_training_blocks_end_with_torchs_dropout_of_channels() -> None:
    case = CASES["cnn of blocks"]
    parameters, inputs = case.parameters(), case.inputs()
    one = {name: stack.detach()[1].clone().requires_grad_() for name, stack in parameters.items()}
    module, names = case.module().double(), case.names(one)
    module.load_state_dict({names[name]: tensor.detach() for name, tensor in one.items()})
    for index, layer in enumerate(module):
        if isinstance(layer, nn.Dropout2d):
            module[index] = Recorded(layer.p)
    torch.manual_seed(3)
    expected = module(inputs[1])
    masks = torch.cat([layer.factors[:, :, 0, 0] != 0 for layer in module if isinstance(layer, Recorded)], 1)
    assert masks.shape == (POINTS, 6 + 3)
    assert 0 < masks.sum() < masks.numel()
    outputs = BLOCKS.one(one, inputs[1], masks)
    assert_same(outputs, expected)
    of_module = dict(module.named_parameters())
    theirs = gradients(expected, {name: of_module[names[name]] for name in one})
    for ours, its in zip(gradients(outputs, one), theirs, strict=True):
        assert_same(ours, its)


def test_a_stack_in_training_is_what_each_network_gives_with_its_masks() -> None:
    case = CASES["cnn of blocks"]
    parameters, inputs = case.parameters(), case.inputs()
    drawn = [BLOCKS.masks(POINTS, stream(seed, "masks")) for seed in range(SEEDS)]
    masks = torch.stack([each for each in drawn if each is not None])
    fast, plain = BLOCKS.forward_masked(parameters, inputs, masks), torch.func.vmap(BLOCKS.one)(parameters, inputs, masks)
    assert_same(fast, plain)
    assert not torch.allclose(fast, BLOCKS.forward(parameters, inputs))
    for one, other in zip(gradients(fast, parameters), gradients(plain, parameters), strict=True):
        assert_same(one, other)


def test_masks_keep_their_share_of_channels() -> None:
    masks = BLOCKS.masks(20_000, stream(0, "masks"))
    assert masks is not None
    assert masks.shape == (20_000, 6 + 3)
    error = math.sqrt(0.6 * 0.4 / 20_000)
    assert torch.allclose(masks.double().mean(0), torch.tensor(0.6, dtype=torch.float64), rtol=0, atol=5 * error)
    assert CONVOLUTIONS.masks(5, stream(0, "masks")) is None


def test_filters_apart_are_the_same_network() -> None:
    apart = BLOCKS.replace(filters="apart")
    whole, parts = BLOCKS.start(PICTURES, 0), apart.start(PICTURES, 0)
    assert [tuple(parts[f"conv.1.{channel}.weight"].shape) for channel in range(6)] == [(4, 3, 3)] * 6
    assert sum(tensor.numel() for tensor in parts.values()) == sum(tensor.numel() for tensor in whole.values())
    for index, channels in enumerate(BLOCKS.channels):
        own = [parts.pop(f"conv.{index}.{channel}.weight") for channel in range(channels)]
        assert torch.equal(torch.stack(own), whole.pop(f"conv.{index}.weight"))
    assert list(parts) == list(whole)
    assert all(torch.equal(parts[name], whole[name]) for name in parts)
    together, separate = (Case(model, PICTURES, nn.Module).parameters(torch.float64) for model in (BLOCKS, apart))
    with torch.no_grad():
        for name, stack in separate.items():
            _, index, channel, *_ = (*name.split("."), "", "")
            is_filter = name not in together
            stack.copy_(together[f"conv.{index}.weight"][:, int(channel)] if is_filter else together[name])
    inputs = CASES["cnn"].inputs()
    assert torch.equal(apart.forward(separate, inputs), BLOCKS.forward(together, inputs))
    one = {name: stack.detach()[1] for name, stack in separate.items()}
    assert_same(apart.one(one, inputs[1]), apart.forward(separate, inputs)[1])


def test_an_orthogonal_start_doubles_every_norm_squared() -> None:
    """Of what a hidden layer of 7 gives back of 7 numbers: W Wᵀ = 2."""
    start = BLOCKS.start(PICTURES, 4)
    for name in ("hidden", "hidden.1", "hidden.2"):
        weight = start[f"{name}.weight"].double()
        torch.testing.assert_close(weight @ weight.mT, 2 * torch.eye(7, dtype=torch.float64), rtol=0, atol=1e-5)
        assert not start[f"{name}.bias"].any()
    assert start["output.bias"].any()


def test_layers_look_up_places() -> None:
    case = Case(LAYERS, Modular(operation="+", modulus=5), nn.Module)
    parameters = case.parameters()
    places = torch.randint(0, 10, (SEEDS, POINTS, 2), generator=stream(0, "places"))
    dense = nn.functional.one_hot(places, 10).sum(-2).double()
    expected = LAYERS.forward(parameters, dense)
    by_product = gradients(expected, parameters)
    for found in (LAYERS.forward(parameters, places), Model.forward(LAYERS, parameters, places)):
        assert_same(found, expected)
        for one, other in zip(gradients(found, parameters), by_product, strict=True):
            assert_same(one, other)


def test_a_transformer_reads_the_order_of_its_tokens_and_nothing_after_the_last() -> None:
    case = CASES["transformer"]
    parameters = {name: stack.detach() for name, stack in case.parameters().items()}
    there, back = torch.tensor([[[1, 7, 2, 8]]] * SEEDS), torch.tensor([[[2, 7, 1, 8]]] * SEEDS)
    assert not torch.allclose(DEEP.forward(parameters, there), DEEP.forward(parameters, back))


# starts


LARGE = {
    "layers": (Layers(widths=(200, 200)), MNIST(train_size=10)),
    "transformer": (Transformer(depth=2, width=128, heads=4), ModularSequence(operation="*", modulus=97)),
    "cnn": (CNN(channels=(32, 64, 64), width=512), CIFAR10(train_size=10)),
}


@pytest.mark.parametrize("name", LARGE)
def test_a_start_has_the_names_shapes_and_spreads_of_torchs_own(name: str) -> None:
    model, task = LARGE[name]
    start = model.start(task, 0)
    torch.manual_seed(0)
    if isinstance(model, Transformer):
        module: nn.Module = Decoder(task.features, task.tokens, model)
    else:
        module = sequential(task, model) if isinstance(model, Layers) else convolutional(task, model)
    names = Case(model, task, lambda: module).names(start)
    own = module.state_dict()
    assert set(names.values()) == set(own)
    for ours, theirs in names.items():
        one, other = start[ours], own[theirs]
        assert one.shape == other.shape
        entries = one.numel()
        if float(other.std()) == 0:
            assert torch.equal(one, other)
        else:
            assert abs(float(one.mean() - other.mean())) < 5 * float(other.std()) * math.sqrt(2 / entries)
            assert abs(float(one.std() / other.std()) - 1) < 5 * math.sqrt(1 / entries)
        if entries > 1000 and "tokens" not in ours:  # uniform: the largest entry tells the bound
            assert float(one.abs().max()) == pytest.approx(float(other.abs().max()), rel=20 / entries)


def test_names_are_those_that_targets_use() -> None:
    names = {name: list(model.start(task, 0)) for name, (model, task) in LARGE.items()}
    assert names["layers"] == [f"layers.{place}.{part}" for place in range(3) for part in ("weight", "bias")]
    assert {f"blocks.{place}.{part}.weight" for place in range(2) for part in ("up", "down")} <= set(names["transformer"])
    assert "head.bias" not in names["transformer"]
    layers = ("conv.0", "conv.1", "conv.2", "hidden", "output")
    assert names["cnn"] == [f"{layer}.{part}" for layer in layers for part in ("weight", "bias")]


@pytest.mark.parametrize("name", LARGE)
def test_a_start_depends_on_the_seed_and_on_nothing_else(name: str) -> None:
    model, task = LARGE[name]
    before = torch.get_rng_state()
    first = model.start(task, 0)
    assert torch.equal(torch.get_rng_state(), before)
    assert all(torch.equal(tensor, first[key]) for key, tensor in model.start(task, 0).items())
    other = model.start(task, 1)
    assert [key for key in first if not torch.equal(first[key], other[key])] == [
        key for key in first if float(first[key].std()) > 0
    ]


def test_scale_multiplies_every_parameter_of_the_layers() -> None:
    plain, scaled = LAYERS.start(FLAT, 0), LAYERS.replace(scale=8.0).start(FLAT, 0)
    assert all(torch.equal(scaled[name], 8 * tensor) for name, tensor in plain.items())


# what does not fit


@pytest.mark.parametrize(
    ("model", "task", "words"),
    [
        (LAYERS, SEQUENCE, "model must take tokens for task 'modular-sequence', got 'layers'; use 'transformer'"),
        (MLP(width=3), SEQUENCE, "model must take tokens for task 'modular-sequence', got 'mlp'; use 'transformer'"),
        (DEEP, FLAT, "task must be of tokens for model 'transformer', got 'parity'; use 'modular-sequence'"),
        (CONVOLUTIONS, FLAT, "task must be of images for model 'cnn', got 'parity'; use 'cifar-10', or model 'layers'"),
        (CNN(channels=(1,) * 8, block=2, width=2), PICTURES, "channels must leave at least a pixel of 8 x 12, got 8"),
        (CNN(channels=(1, 1, 1, 1), width=2), PICTURES, "channels must leave at least a pixel of 8 x 12, got 4"),
    ],
)
def test_a_model_that_does_not_fit_the_task_is_an_error(model: Model, task: Task, words: str) -> None:
    with pytest.raises(SpecError) as caught:
        model.start(task, 0)
    assert words in str(caught.value)


def test_heads_must_divide_the_width() -> None:
    with pytest.raises(SpecError, match="heads must divide width = 10, got 3; every head has an equal share"):
        Transformer(depth=1, width=10, heads=3)


def test_blocks_must_be_whole() -> None:
    with pytest.raises(SpecError, match="block must divide the 3 convolutions, got 2; change channels"):
        CNN(channels=(4, 4, 4), block=2, width=2)
