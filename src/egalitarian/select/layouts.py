"""How each kind of module holds its matrices: the output axis, matrices fused in one weight, the axis of a stack."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from torch import Tensor, nn
from torch.nn.utils.parametrize import ParametrizationList

from egalitarian.select.fused import FUSED, Pieces, fused, looks_fused
from egalitarian.select.listing import Owner

_EMBEDDINGS = (nn.Embedding, nn.EmbeddingBag)
_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
_TRANSPOSED = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
_RECURRENT = (nn.RNNBase, nn.RNNCellBase)
_ATTENTION_WEIGHTS = ("in_proj_weight", "q_proj_weight", "k_proj_weight", "v_proj_weight")
_SAME_SHAPE = ("_SpectralNorm", "_WeightNorm")
"""Parametrizations that compute the weight from a matrix of its shape."""
_EXPERTS = {"GptOssExperts": (True, False), "Llama4TextExperts": (True, True)}
"""Whether weights are (in, out), and whether gate and up are halves, not interleaved. Other classes have attributes."""


@dataclass(frozen=True)
class Layout:
    """How a parameter is seen as matrices, or why it is not."""

    output: int = 0
    """The axis of the output units, after the stack's."""
    pieces: Pieces | None = None
    """The matrices that are fused in it; None for one matrix."""
    stacked: bool = False
    remark: str = ""
    """What the plan's line adds where the layout is not known for certain."""
    reason: str = ""
    """Why it is left alone; empty if it is taken."""
    known: bool = True
    """Whether this kind of module is recognised."""


def layout(owner: Owner, parameter: Tensor) -> Layout:
    """How the owner of a parameter uses it as matrices."""
    layer, (local, reason) = owner.layer, _weight(owner)
    if reason:
        return Layout(reason=reason)
    if isinstance(layer, _EMBEDDINGS):
        return Layout(reason=f"embedding {owner.name!r}")
    if isinstance(layer, nn.MultiheadAttention):
        return _attention(layer, local)
    if isinstance(layer, _RECURRENT) and local.startswith("weight_"):
        gates = parameter.shape[0] // layer.hidden_size
        return Layout(pieces=Pieces((layer.hidden_size,) * gates) if gates > 1 and "_hr_" not in local else None)
    if type(layer).__name__.endswith("Experts") and parameter.ndim > 1 and parameter.shape[0] == _stack_of(layer):
        return _experts(layer, local, parameter)
    if local == "weight" and parameter.ndim == 2 and parameter.shape[0] < parameter.shape[1] and _is_router(owner):
        return Layout()
    if owner.factor == local and parameter.ndim == 2:
        return _layer(owner, parameter, 0)
    if local == "weight" and is_layer(layer):
        if isinstance(layer, _TRANSPOSED) and layer.groups != 1:
            return Layout(1, reason="grouped transposed convolution")
        return _layer(owner, parameter, 1 if isinstance(layer, _TRANSPOSED) or _is_conv1d(layer) else 0)
    return Layout(reason=f"{local!r} of {type(layer).__name__} is not recognised", known=False)


def is_layer(module: nn.Module) -> bool:
    """Whether the module may be an output head: it maps inputs to outputs by one weight."""
    return isinstance(module, (nn.Linear, nn.Bilinear, *_CONVOLUTIONS, *_TRANSPOSED)) or _is_conv1d(module)


def down_to_layer(around: tuple[tuple[str, nn.Module], ...]) -> tuple[tuple[str, nn.Module], ...]:
    """The modules around a weight, down to the outermost layer. The layers that it holds, such as adapters, are parts."""
    return next((around[: depth + 1] for depth, (_, module) in enumerate(around) if is_layer(module)), around)


def widths(owner: Owner, parameter: Tensor, output: int, stacked: bool) -> tuple[frozenset[int], int]:
    """How wide the inputs of a layer are, and its outputs."""
    layer = owner.layer
    if isinstance(layer, nn.Bilinear):
        return frozenset({layer.in1_features, layer.in2_features}), layer.out_features
    if isinstance(layer, nn.MultiheadAttention):
        return frozenset({layer.embed_dim, layer.kdim or 0, layer.vdim or 0}), layer.embed_dim
    if isinstance(layer, nn.RNNBase):
        return frozenset({layer.input_size}), (layer.proj_size or layer.hidden_size) * (2 if layer.bidirectional else 1)
    if isinstance(layer, nn.RNNCellBase):
        return frozenset({layer.input_size}), layer.hidden_size
    shape = parameter.shape[1:] if stacked else parameter.shape
    return frozenset({shape[1 - output] * getattr(layer, "groups", 1)}), shape[output]


def _is_conv1d(module: nn.Module) -> bool:
    """Whether it is the Conv1D of Hugging Face: a Linear whose weight is (in, out)."""
    if type(module).__name__ != "Conv1D" or not hasattr(module, "nf"):
        return False  # before the weight is read: that of a parametrized module is computed, which may change its buffers
    weight = getattr(module, "weight", None)
    return isinstance(weight, Tensor) and weight.ndim == 2


def _weight(owner: Owner) -> tuple[str, str]:
    """The name of the weight computed from this parameter, and why the parameter is left, if it is."""
    if isinstance(owner.module, ParametrizationList):
        kinds = [type(each).__name__ for each in owner.module]
        name = owner.path.rpartition(".")[2]
        if owner.local == "original0" and kinds == ["_WeightNorm"]:
            return name, "magnitude of a weight norm"
        known = all(kind in _SAME_SHAPE for kind in kinds)
        return name, "" if known else f"coordinates of a weight under {' and '.join(kinds).lstrip('_')}"
    name, _, kind = owner.local.rpartition("_")
    held = {local for local, _ in owner.module.named_parameters(recurse=False)} if kind in ("g", "v", "orig") else set()
    if {f"{name}_g", f"{name}_v"} <= held:
        return name, "magnitude of a weight norm" if kind == "g" else ""
    return (name, "") if kind == "orig" and name not in held else (owner.local, "")


def _attention(layer: nn.MultiheadAttention, local: str) -> Layout:
    if local not in _ATTENTION_WEIGHTS:
        return Layout(reason=f"{local!r} of {type(layer).__name__} is one vector")
    return Layout(pieces=Pieces((layer.embed_dim,) * 3) if local == "in_proj_weight" else None)


def _layer(owner: Owner, parameter: Tensor, output: int) -> Layout:
    if owner.site is None or owner.factor == "lora_A":
        return Layout(output)
    rows = parameter.shape[output]
    pieces, remark = fused(*owner.site, rows, parameter.numel() // max(rows, 1))
    return Layout(output, pieces, remark=remark)


def _is_router(owner: Owner) -> bool:
    """Whether it chooses among experts by a weight (experts, hidden): by its class, or by its name next to experts."""
    if type(owner.layer).__name__.endswith("Router"):
        return True
    holder, name = owner.site or (owner.layer, "")
    return name in ("router", "gate") and any("expert" in child for child, _ in holder.named_children())


def _stack_of(layer: nn.Module) -> int:
    """How many experts there are: the leading axis of most parameters that may be stacks; 0 if none is."""
    lengths = Counter(each.shape[0] for each in layer.parameters(recurse=False) if each.ndim > 2)
    return max(lengths, key=lambda length: (lengths[length], length), default=0)


def _experts(layer: nn.Module, local: str, parameter: Tensor) -> Layout:
    """Stacks of matrices, one per expert, where the class is known to order them so."""
    transposed, concatenated = getattr(layer, "is_transposed", None), getattr(layer, "is_concatenated", None)
    if not isinstance(transposed, bool) or not isinstance(concatenated, bool):
        if type(layer).__name__ not in _EXPERTS:
            several = f"; {FUSED}" if looks_fused(local, max(parameter.shape[1:]), min(parameter.shape[1:])) else ""
            return Layout(stacked=True, remark=f"the output axis taken to be the first{several}")
        transposed, concatenated = _EXPERTS[type(layer).__name__]
    output = int(transposed)
    pieces = None
    if local == "gate_up_proj" and parameter.ndim == 3:
        half = parameter.shape[1 + output] // 2
        pieces = Pieces((half, half)) if concatenated else Pieces((1, 1), half)
    return Layout(output, pieces, stacked=True)
