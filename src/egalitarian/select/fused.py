"""Weights of public models that hold several matrices, and which rows belong to which.

A row of the table was checked against the forward pass of its class. Another class may order its rows differently, so a
weight that only looks fused stays whole.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

_FUSED_NAME = re.compile("qkv|query_key_value|c_attn|gate_up|kv_proj|in_proj")


@dataclass(frozen=True)
class Pieces:
    """Fused matrices: the rows of each, in runs that follow each other `repeats` times."""

    sizes: tuple[int, ...]
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
    size = holder.head_size if hasattr(holder, "head_size") else holder.head_dim
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


def _grouped(rows: int, shared: int, groups: int = 1) -> Pieces:
    return Pieces((rows // groups - 2 * shared, shared, shared), groups)


_TABLE: tuple[tuple[str, tuple[str, ...], Callable[[Any, int], Pieces | None]], ...] = (
    ("qkv", ("transformers", "torchvision", "timm.layers.attention"), _query_key_value),
    ("qkv", ("timm.models.vision_transformer", "timm.models.swin_transformer"), _query_key_value),
    ("Wqkv", ("MptAttention", "DbrxAttention", "ModernBertAttention"), _query_key_value),
    ("qkv_proj", ("Phi3Attention", "Phi4MultimodalAttention"), _query_key_value),
    ("qkv_proj", ("CodeGenAttention",), _codegen),
    ("qkv_proj", ("MiniMaxLightningAttention",), _head_by_head),
    ("query_key_value", ("GPTNeoXAttention", "GPTNeoXJapaneseAttention", "BloomAttention"), _head_by_head),
    ("query_key_value", ("PersimmonAttention",), _head_by_head),
    ("query_key_value", ("FalconAttention",), _falcon),
    ("c_attn", ("GPT2Attention", "ImageGPTAttention", "DecisionTransformerGPT2Attention"), _gpt),
    ("c_attn", ("CausalSelfAttention",), _gpt),
    ("c_attn", ("GPTBigCodeAttention",), _bigcode),
    ("gate_up_proj", ("transformers",), _equal(2)),
    ("Wi", ("ModernBertMLP", "ModernBertDecoderMLP"), _equal(2)),
    ("in_proj", ("MambaMixer", "FalconMambaMixer", "JambaMambaMixer"), _equal(2)),
    ("x_proj", ("MambaMixer", "FalconMambaMixer"), _mamba),
)
"""The layer's name, the classes or packages whose layer it is, and the rule."""


def fused(holder: object, name: str, rows: int, inputs: int) -> Pieces | str:
    """The matrices of a fused layer; an empty text for a layer that is one matrix, a remark for one that may be several."""
    classes = {kind.__name__ for kind in type(holder).__mro__}
    home = type(holder).__module__ + "."
    for layer, known, rule in _TABLE:
        if layer == name and (classes.intersection(known) or any(home.startswith(f"{package}.") for package in known)):
            try:
                pieces = rule(holder, rows)
            except AttributeError:  # another class of that name, or another version of it
                continue
            if pieces is not None and pieces.covers(rows):
                return pieces
    return "one matrix, perhaps several fused: split= parts them" if _FUSED_NAME.search(name) and rows > inputs else ""
