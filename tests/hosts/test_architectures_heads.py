"""Heads of real models that return more than logits: by evidence, and by a forward pass."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import transformers as hf

import egalitarian as eg

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning")  # of transformers' own code

SMALL = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48}
HALF = {f"{part}_{name}": value for part in ("encoder", "decoder") for name, value in (("layers", 1), ("ffn_dim", 24))}
ATTENTION = {"encoder_attention_heads": 4, "decoder_attention_heads": 4}


def detr() -> Any:
    backbone = hf.ResNetConfig(
        embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1], layer_type="basic", out_features=["stage2"]
    )
    config = {"use_timm_backbone": False, "use_pretrained_backbone": False, "backbone": None, "backbone_config": backbone}
    return hf.DetrForObjectDetection(hf.DetrConfig(**config, **HALF, **ATTENTION, d_model=32, num_queries=7, num_labels=5))


def upernet() -> Any:
    stages = [f"stage{number}" for number in range(1, 5)]
    backbone = hf.ConvNextConfig(hidden_sizes=[8, 16, 24, 32], depths=[1] * 4, num_stages=4, out_features=stages)
    sizes = {"hidden_size": 16, "auxiliary_in_channels": 24, "auxiliary_channels": 8, "pool_scales": [1, 2]}
    return hf.UperNetForSemanticSegmentation(hf.UperNetConfig(backbone_config=backbone, num_labels=5, **sizes))


def clip() -> Any:
    text = {**SMALL, "vocab_size": 60, "max_position_embeddings": 16}
    vision = {**SMALL, "image_size": 16, "patch_size": 8}
    return hf.CLIPModel(hf.CLIPConfig(text_config=text, vision_config=vision, projection_dim=24))


def forecaster() -> Any:
    times = {"prediction_length": 4, "context_length": 8, "lags_sequence": [1, 2], "num_time_features": 1}
    return hf.TimeSeriesTransformerForPrediction(hf.TimeSeriesTransformerConfig(**times, **HALF, d_model=16))


def decisions() -> Any:
    sizes = {"state_dim": 5, "act_dim": 3, "hidden_size": 32, "n_layer": 2, "n_head": 4}
    return hf.DecisionTransformerModel(hf.DecisionTransformerConfig(**sizes, max_ep_len=16, vocab_size=1))


def pages() -> Any:
    sizes = {"coordinate_size": 5, "shape_size": 6, "input_size": 16, "patch_size": 8, "max_position_embeddings": 64}
    return hf.LayoutLMv3ForTokenClassification(hf.LayoutLMv3Config(**SMALL, **sizes, vocab_size=60, num_labels=2))


def groups(shared: int) -> Any:
    """The projections into the shared space may be as wide as a layer inside of an encoder."""
    text = {**SMALL, "vocab_size": 60, "max_position_embeddings": 16}
    groups = {"num_group_tokens": [8, 4, 0], "num_output_groups": [8, 4, 0], "depths": [1, 1, 1], "num_hidden_layers": 3}
    vision = {**SMALL, "num_hidden_layers": 3, "image_size": 32, "patch_size": 8, **groups}
    sizes = {"projection_dim": shared, "projection_intermediate_dim": 40}
    return hf.GroupViTModel(hf.GroupViTConfig(text_config=text, vision_config=vision, **sizes))


def voice() -> Any:
    layers = {"num_hidden_layers": 1, "prior_encoder_num_flows": 1, "duration_predictor_num_flows": 2}
    sizes = {"vocab_size": 40, "hidden_size": 16, "num_attention_heads": 2, "ffn_dim": 24, "flow_size": 16}
    return hf.VitsModel(hf.VitsConfig(**layers, **sizes, spectrogram_bins=33, upsample_initial_channel=512))


def speech() -> Any:
    sizes = {"hidden_size": 32, "vocab_size": 60, "num_mel_bins": 20, "speech_decoder_postnet_units": 24}
    return hf.SpeechT5ForTextToSpeech(hf.SpeechT5Config(**sizes, **HALF, **ATTENTION))


PIXELS = {"pixel_values": torch.ones(1, 3, 64, 64)}
SMALL_PIXELS = {"pixel_values": torch.ones(1, 3, 16, 16)}
SERIES = {
    "past_values": torch.ones(1, 10),
    "past_time_features": torch.ones(1, 10, 1),
    "past_observed_mask": torch.ones(1, 10),
    "future_values": torch.ones(1, 4),
    "future_time_features": torch.ones(1, 4, 1),
}
STEPS = {
    "states": torch.ones(1, 4, 5),
    "actions": torch.ones(1, 4, 3),
    "rewards": torch.ones(1, 4, 1),
    "returns_to_go": torch.ones(1, 4, 1),
    "timesteps": torch.arange(4)[None],
    "attention_mask": torch.ones(1, 4),
}
MODELS: dict[str, tuple[Callable[[], Any], dict[str, Any], list[str]]] = {
    "DETR": (detr, PIXELS, ["class_labels_classifier.weight", "bbox_predictor.layers.2.weight"]),
    "UPerNet": (upernet, PIXELS, ["decode_head.classifier.weight", "auxiliary_head.classifier.weight"]),
    "CLIP": (
        clip,
        {"input_ids": torch.arange(1, 7)[None], **SMALL_PIXELS},
        ["visual_projection.weight", "text_projection.weight"],
    ),
    **{
        f"GroupViT, {shared}": (
            lambda shared=shared: groups(shared),
            {"input_ids": torch.arange(1, 7)[None], "pixel_values": torch.ones(1, 3, 32, 32)},
            ["visual_projection.3.weight", "text_projection.3.weight"],
        )
        for shared in (24, 40, 48)
    },
    "time series transformer": (
        forecaster,
        SERIES,
        [f"parameter_projection.proj.{number}.weight" for number in range(3)],
    ),
    "decision transformer": (
        decisions,
        STEPS,
        ["predict_state.weight", "predict_action.0.weight", "predict_return.weight"],
    ),
    "LayoutLMv3": (
        pages,
        {"input_ids": torch.arange(1, 7)[None], "bbox": torch.zeros(1, 6, 4, dtype=torch.long), **SMALL_PIXELS},
        ["classifier.weight"],
    ),
}


@pytest.mark.parametrize("name", MODELS)
def test_the_heads_of_a_model_with_several_outputs(name: str) -> None:
    make, example, found = MODELS[name]
    model = make()
    plain, ran = eg.matrices(model), eg.matrices(model, example=example)
    for plan in (plain, ran):
        assert [entry.name for entry in plan.left if entry.reason == "output head"] == found
        assert plan.doubts == ()


@pytest.mark.parametrize("make", [voice, speech])
def test_models_of_speech_are_uncertain(make: Callable[[], Any]) -> None:
    """Flows and predictions before the last network look like heads."""
    assert eg.matrices(make()).doubts[0].startswith("the output head is taken to be ")
