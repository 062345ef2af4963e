"""Linear layers with ReLU between them, as `nn.Sequential` of `nn.Linear` would have them."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

from torch import Tensor
from torch.nn import functional as F

from egalitarian.lab.config.schema import setting
from egalitarian.lab.problems.models.base import Model, Parameters, add_columns, linear, refuse_sequences, torch_layer
from egalitarian.lab.problems.tasks import Task, stream


@dataclass(frozen=True, kw_only=True)
class Layers(Model, kind="layers"):
    """Every layer with a bias; the start is torch's, times `scale`."""

    widths: tuple[int, ...] = setting(least=1)
    """Of the hidden layers."""
    scale: float = setting(1.0, above=0)
    """Every parameter is multiplied by it."""

    def start(self, task: Task, seed: int) -> dict[str, Tensor]:
        refuse_sequences(self, task)
        draw = stream(seed, "init")
        start: dict[str, Tensor] = {}
        for place, (width, above) in enumerate(pairwise((task.features, *self.widths, task.outputs))):
            start |= torch_layer(f"layers.{place}", (above, width), draw)
        return {name: tensor.mul_(self.scale) for name, tensor in start.items()}

    def one(self, parameters: Parameters, inputs: Tensor) -> Tensor:
        weight = parameters["layers.0.weight"]
        if not inputs.is_floating_point():  # ones at the places that are named
            inputs = F.one_hot(inputs, weight.shape[1]).sum(-2).to(weight.dtype)
        values = F.linear(inputs.flatten(1), weight, parameters["layers.0.bias"])
        for layer in self._upper:
            values = F.linear(F.relu(values), parameters[f"{layer}.weight"], parameters[f"{layer}.bias"])
        return values

    def forward(self, parameters: Parameters, inputs: Tensor) -> Tensor:
        values = self._lowest(parameters, inputs)
        for layer in self._upper:
            values = linear(layer, parameters, values.relu_())
        return values

    @property
    def _upper(self) -> list[str]:
        return [f"layers.{place}" for place in range(1, len(self.widths) + 1)]

    def _lowest(self, parameters: Parameters, inputs: Tensor) -> Tensor:
        if inputs.is_floating_point():
            return linear("layers.0", parameters, inputs.flatten(2))
        weight, bias = parameters["layers.0.weight"], parameters["layers.0.bias"]
        columns = add_columns(weight, inputs)
        return columns.view(len(weight), -1, columns.shape[-1]) + bias[:, None]
