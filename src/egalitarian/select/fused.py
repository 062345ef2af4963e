"""Fused weights of public models: which rows of a weight belong to which of its matrices.

Each entry of the table was checked against the forward pass of its class, in the package that it names. Another class may
order its rows differently, so a weight that only looks fused stays whole.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

FUSED = "one matrix, perhaps several fused: split it with split="
_IN_ORDER = "rows taken to be query, key and value one after another; split= changes that"
_SEVERAL = re.compile(r"(.*_)?(w?(qkvz?|kqv|qk|kv)|query_key_value|key_value|gate_up|up_gate|w12|w13|in_proj_ba)(_.*)?")
"""Names of fused weights: one of the parts between underscores is enough."""
_PERHAPS = re.compile(r"in_proj(_.*)?|c_attn|(attn?|attention)(_proj)?|[xh]2h|input_linear|weights_in")
"""Names of fused weights, if the outputs are a multiple of the inputs. For `in_proj`, at least twice as many is enough."""

_HEAD_SIZES = ("head_size", "head_dim", "attention_head_size")


@dataclass(frozen=True)
class Pieces:
    """Fused matrices: how many rows each has, one after another. The pattern of rows comes `repeats` times."""

    sizes: tuple[int, ...]
    """The rows of each matrix in one pattern."""
    repeats: int = 1

    def covers(self, rows: int) -> bool:
        """Whether every row belongs to exactly one of several matrices."""
        return len(self.sizes) > 1 and min(self.sizes) > 0 and sum(self.sizes) * self.repeats == rows


def _equal(count: int) -> Callable[[Any, int], Pieces]:
    return lambda _holder, rows: Pieces((rows // count,) * count)


def _gpt(holder: Any, _rows: int) -> Pieces:
    """Query, key and value, or in a cross-attention key and value, each as wide as the model."""
    width = holder.embed_dim if hasattr(holder, "embed_dim") else holder.n_embd
    return Pieces((width,) * (2 if getattr(holder, "is_cross_attention", False) else 3))


def _query_key_value(holder: Any, rows: int) -> Pieces:
    """Three parts one after another; with grouped heads, key and value are shorter."""
    heads = getattr(holder, "num_key_value_heads", None)
    return _equal(3)(holder, rows) if heads is None else _grouped(rows, heads * holder.head_dim)


def _head_by_head(holder: Any, rows: int) -> Pieces:
    """Query, key and value of the first head, then of the second, and so on."""
    size = next(filter(None, (getattr(holder, name, 0) for name in _HEAD_SIZES)))
    return Pieces((size,) * 3, rows // (3 * size))


def _falcon(holder: Any, rows: int) -> Pieces:
    """Group by group: the queries that share a key, then that key and its value."""
    if not (holder.new_decoder_architecture or holder.multi_query):
        return _head_by_head(holder, rows)
    return _grouped(rows, holder.head_dim, holder.num_kv_heads)


def _bigcode(holder: Any, rows: int) -> Pieces | None:
    if holder.is_cross_attention:
        return None
    return _grouped(rows, holder.kv_dim) if holder.multi_query else _head_by_head(holder, rows)


def _codegen(_holder: Any, rows: int) -> Pieces:
    """Four groups of heads; in each the queries, the values and the keys."""
    return Pieces((rows // 12,) * 3, 4)


def _mamba(holder: Any, _rows: int) -> Pieces:
    return Pieces((holder.time_step_rank, holder.ssm_state_size, holder.ssm_state_size))


def _mamba2(holder: Any, _rows: int) -> Pieces:
    """The gate, then what the convolution takes (inputs, B and C), then the time steps."""
    inner, state = holder.intermediate_size, holder.n_groups * holder.ssm_state_size
    return Pieces((inner, inner, state, state, holder.num_heads))


def _grouped(rows: int, shared: int, groups: int = 1) -> Pieces:
    return Pieces((rows // groups - 2 * shared, shared, shared), groups)


_HF = ("transformers",)
_TABLE: tuple[tuple[str, tuple[str, ...], tuple[str, ...], Callable[[Any, int], Pieces | None]], ...] = (
    ("qkv", ("transformers", "torchvision", "timm.layers.attention"), (), _query_key_value),
    ("qkv", ("timm.models.vision_transformer", "timm.models.swin_transformer"), (), _query_key_value),
    ("Wqkv", _HF, ("MptAttention", "DbrxAttention", "ModernBertAttention"), _query_key_value),
    ("qkv_proj", _HF, ("Phi3Attention", "Phi4MultimodalAttention"), _query_key_value),
    ("qkv_proj", _HF, ("CodeGenAttention",), _codegen),
    ("qkv_proj", _HF, ("MiniMaxLightningAttention",), _head_by_head),
    ("query_key_value", _HF, ("GPTNeoXAttention", "GPTNeoXJapaneseAttention", "BloomAttention"), _head_by_head),
    ("query_key_value", _HF, ("PersimmonAttention",), _head_by_head),
    ("query_key_value", _HF, ("FalconAttention",), _falcon),
    ("c_attn", _HF, ("GPT2Attention", "ImageGPTAttention", "DecisionTransformerGPT2Attention"), _gpt),
    ("c_attn", _HF, ("GPTBigCodeAttention",), _bigcode),
    ("gate_up_proj", _HF, (), _equal(2)),
    ("Wi", _HF, ("ModernBertMLP", "ModernBertDecoderMLP"), _equal(2)),
    ("in_proj", _HF, ("DisentangledSelfAttention",), _head_by_head),
    ("in_proj", _HF, ("Mamba2Mixer",), _mamba2),
    ("in_proj", _HF, ("MambaMixer", "FalconMambaMixer", "JambaMambaMixer"), _equal(2)),
    ("x_proj", _HF, ("MambaMixer", "FalconMambaMixer", "JambaMambaMixer"), _mamba),
)
"""The layer's name; the packages and classes that hold it, where no class means all; and the rule for its rows."""


def fused(holder: object, name: str, rows: int, inputs: int) -> tuple[Pieces | None, str]:
    """The matrices of a fused layer, or None for one matrix; and a remark where this is not certain."""
    if (pieces := _known(holder, name, rows)) is not None:
        return pieces, ""
    nano = type(holder).__name__ == "CausalSelfAttention" and name == "c_attn" and getattr(holder, "n_embd", 0) == inputs
    if nano and rows == 3 * inputs:
        return Pieces((inputs,) * 3), _IN_ORDER
    return None, FUSED if looks_fused(name, rows, inputs) and not _is_mlp(holder, name) else ""


def looks_fused(name: str, outputs: int, inputs: int) -> bool:
    """Whether the name suggests several matrices; for some names, only if there are many more outputs than inputs."""
    wide = outputs >= 2 * inputs > 0 and (outputs % inputs == 0 or name.startswith("in_proj"))
    return bool(_SEVERAL.fullmatch(name.lower())) or (wide and bool(_PERHAPS.fullmatch(name.lower())))


def _known(holder: object, name: str, rows: int) -> Pieces | None:
    classes = {(kind.__name__, kind.__module__) for kind in type(holder).__mro__}
    for layer, packages, names, rule in _TABLE:
        homes = [home for kind, home in classes if kind in names] if names else [type(holder).__module__]
        if layer == name and any(f"{home}.".startswith(f"{package}.") for home in homes for package in packages):
            try:
                pieces = rule(holder, rows)
            except (AttributeError, StopIteration):  # another version of that class
                continue
            if pieces is not None and pieces.covers(rows):
                return pieces
    return None


def _is_mlp(holder: object, name: str) -> bool:
    """Whether the weight is the first layer of an MLP, which has many outputs without being fused."""
    return name == "in_proj" and type(holder).__name__.lower().endswith(("mlp", "feedforward"))
