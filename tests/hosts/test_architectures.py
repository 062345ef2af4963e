"""Real models of Hugging Face and peft: what is taken of each, as which matrices, and which layer is the head."""

from __future__ import annotations

import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as hf
from peft import LoraConfig, get_peft_model
from torch import Tensor, nn
from torch.nn.functional import silu

import egalitarian as eg

pytestmark = pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")  # between peft and transformers

SMALL = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48, "vocab_size": 60}
GPT2 = {"n_embd": 32, "n_layer": 2, "n_head": 4, "vocab_size": 60, "n_positions": 16, "num_labels": 3, "pad_token_id": 0}
T5 = {"d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 2, "num_heads": 4, "vocab_size": 60, "decoder_start_token_id": 0}
VISION = {"image_size": 16, "patch_size": 8, "num_labels": 3}
WHISPER = {
    "d_model": 32,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 48,
    "decoder_ffn_dim": 48,
    "vocab_size": 60,
    "num_mel_bins": 8,
    "max_source_positions": 20,
    "max_target_positions": 16,
    "pad_token_id": 0,
    "decoder_start_token_id": 1,
}
FALCON = {key: SMALL[key] for key in ("hidden_size", "num_hidden_layers", "num_attention_heads", "vocab_size")}


def llama() -> Any:
    return hf.LlamaForCausalLM(hf.LlamaConfig(**SMALL, num_key_value_heads=2))


def bert() -> Any:
    return hf.BertModel(hf.BertConfig(**SMALL))


def lora(model: Any, *targets: str, **options: Any) -> nn.Module:
    return get_peft_model(model, LoraConfig(r=2, target_modules=list(targets), **options))


MODELS: dict[str, Callable[[], Any]] = {
    "GPT-2": lambda: hf.GPT2LMHeadModel(hf.GPT2Config(**GPT2)),
    "GPT-2, classifier": lambda: hf.GPT2ForSequenceClassification(hf.GPT2Config(**GPT2)),
    "Llama": llama,
    "BERT, headless": bert,
    "BERT, masked LM": lambda: hf.BertForMaskedLM(hf.BertConfig(**SMALL)),
    "BERT, pretraining": lambda: hf.BertForPreTraining(hf.BertConfig(**SMALL)),
    "BERT, classifier": lambda: hf.BertForSequenceClassification(hf.BertConfig(**SMALL, num_labels=3)),
    "BERT, questions": lambda: hf.BertForQuestionAnswering(hf.BertConfig(**SMALL)),
    "RoBERTa, classifier": lambda: hf.RobertaForSequenceClassification(hf.RobertaConfig(**SMALL, num_labels=3)),
    "ViT": lambda: hf.ViTForImageClassification(
        hf.ViTConfig(**{key: value for key, value in SMALL.items() if key != "vocab_size"}, **VISION)
    ),
    "T5": lambda: hf.T5ForConditionalGeneration(hf.T5Config(**T5)),
    "Whisper": lambda: hf.WhisperForConditionalGeneration(hf.WhisperConfig(**WHISPER)),
    "Mixtral": lambda: hf.MixtralForCausalLM(
        hf.MixtralConfig(**SMALL, num_key_value_heads=2, num_local_experts=4, num_experts_per_tok=2)
    ),
    "GPT-OSS": lambda: hf.GptOssForCausalLM(
        hf.GptOssConfig(**SMALL, num_key_value_heads=2, head_dim=8, num_local_experts=4, num_experts_per_tok=2)
    ),
    "ResNet": lambda: hf.ResNetForImageClassification(
        hf.ResNetConfig(embedding_size=8, hidden_sizes=[8, 16], depths=[2, 2], layer_type="basic", num_labels=3)
    ),
    "ResNet, headless": lambda: hf.ResNetModel(
        hf.ResNetConfig(embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1], layer_type="basic")
    ),
    "ConvNeXt": lambda: hf.ConvNextForImageClassification(
        hf.ConvNextConfig(hidden_sizes=[8, 16], depths=[1, 2], num_stages=2, num_labels=3)
    ),
    "Mamba": lambda: hf.MambaForCausalLM(
        hf.MambaConfig(hidden_size=32, num_hidden_layers=2, vocab_size=60, state_size=4, time_step_rank=3)
    ),
    "GPT-NeoX": lambda: hf.GPTNeoXForCausalLM(hf.GPTNeoXConfig(**SMALL)),
    "Bloom": lambda: hf.BloomForCausalLM(hf.BloomConfig(hidden_size=32, n_layer=2, n_head=4, vocab_size=60)),
    "Falcon": lambda: hf.FalconForCausalLM(hf.FalconConfig(**FALCON)),
    "Falcon, heads": lambda: hf.FalconForCausalLM(hf.FalconConfig(**FALCON, multi_query=False, alibi=False)),
    "Falcon, groups": lambda: hf.FalconForCausalLM(
        hf.FalconConfig(**FALCON, new_decoder_architecture=True, num_kv_heads=2, num_ln_in_parallel_attn=2)
    ),
    "Phi-3": lambda: hf.Phi3ForCausalLM(hf.Phi3Config(**SMALL, num_key_value_heads=2, pad_token_id=0)),
    "ModernBERT": lambda: hf.ModernBertForMaskedLM(hf.ModernBertConfig(**SMALL, pad_token_id=0)),
    "GPT-BigCode": lambda: hf.GPTBigCodeForCausalLM(hf.GPTBigCodeConfig(n_embd=32, n_layer=2, n_head=4, vocab_size=60)),
    "GPT-BigCode, heads": lambda: hf.GPTBigCodeForCausalLM(
        hf.GPTBigCodeConfig(n_embd=32, n_layer=2, n_head=4, vocab_size=60, multi_query=False)
    ),
    "Llama 4": lambda: hf.Llama4ForCausalLM(
        hf.Llama4TextConfig(**SMALL, num_key_value_heads=2, head_dim=8, num_local_experts=4, intermediate_size_mlp=48)
    ),
    "Aria": lambda: hf.AriaTextForCausalLM(
        hf.AriaTextConfig(**SMALL, num_key_value_heads=2, moe_num_experts=4, moe_topk=2, pad_token_id=0)
    ),
    "CodeGen": lambda: hf.CodeGenForCausalLM(
        hf.CodeGenConfig(n_embd=32, n_layer=1, n_head=4, vocab_size=60, rotary_dim=4, n_positions=16, n_ctx=16)
    ),
    "Mamba-2": lambda: hf.Mamba2ForCausalLM(
        hf.Mamba2Config(
            hidden_size=32, num_hidden_layers=1, vocab_size=60, num_heads=8, head_dim=8, state_size=4, n_groups=2
        )
    ),
    "Jamba": lambda: hf.JambaForCausalLM(
        hf.JambaConfig(
            **SMALL,
            num_key_value_heads=2,
            attn_layer_period=2,
            attn_layer_offset=1,
            expert_layer_period=2,
            expert_layer_offset=1,
            num_experts=4,
            mamba_d_state=4,
            mamba_dt_rank=3,
        )
    ),
    "DeBERTa": lambda: hf.DebertaForSequenceClassification(
        hf.DebertaConfig(**SMALL, relative_attention=True, pos_att_type=["p2c", "c2p"], num_labels=3)
    ),
    "ALBERT": lambda: hf.AlbertForSequenceClassification(hf.AlbertConfig(**SMALL, embedding_size=16, num_labels=3)),
    "Gemma 3n": lambda: hf.Gemma3nForCausalLM(
        hf.Gemma3nTextConfig(
            **{**SMALL, "intermediate_size": [48, 48]},
            num_key_value_heads=2,
            head_dim=8,
            vocab_size_per_layer_input=60,
            hidden_size_per_layer_input=8,
            laurel_rank=4,
            num_kv_shared_layers=0,
            activation_sparsity_pattern=[0.0, 0.0],
        )
    ),
    "SEW-D": lambda: hf.SEWDForCTC(
        hf.SEWDConfig(
            **SMALL,
            conv_dim=[16, 16],
            conv_stride=[5, 2],
            conv_kernel=[10, 3],
            num_feat_extract_layers=2,
            num_conv_pos_embeddings=4,
            num_conv_pos_embedding_groups=2,
        )
    ),
    "SigLIP": lambda: hf.SiglipModel(
        hf.SiglipConfig(
            text_config={**SMALL, "max_position_embeddings": 16, "projection_size": 32},
            vision_config={**{key: value for key, value in SMALL.items() if key != "vocab_size"}, **VISION},
        )
    ),
    "LoRA on Llama": lambda: lora(llama(), "q_proj", "v_proj", task_type="CAUSAL_LM"),
    "LoRA on GPT-2": lambda: lora(hf.GPT2LMHeadModel(hf.GPT2Config(**GPT2)), "c_attn", fan_in_fan_out=True),
    "LoRA on GPT-NeoX": lambda: lora(hf.GPTNeoXForCausalLM(hf.GPTNeoXConfig(**SMALL)), "query_key_value"),
    "LoRA on headless BERT": lambda: lora(bert(), "query", "value"),
    "LoRA, head trained": lambda: lora(
        hf.BertForSequenceClassification(hf.BertConfig(**SMALL, num_labels=3)), "query", modules_to_save=["classifier"]
    ),
}


def made(name: str) -> Any:
    """The model of this name, with weights that depend on nothing else."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return MODELS[name]()


TABLE: dict[str, dict[str, Any]] = tomllib.loads(Path(__file__).with_name("architectures.toml").read_text(encoding="utf-8"))
"""By model: its heads, and what is taken, a line for each kind of weight and its matrices; `*` stands for numbers."""


def heads(plan: eg.Plan) -> list[str]:
    return [entry.name for entry in plan.left if entry.reason.startswith("output head")]


def taken(plan: eg.Plan) -> list[str]:
    """`name: matrices`, once for all numbers in the name."""
    lines = {}
    for entry in plan.taken:
        name = ".".join("*" if step.isdigit() else step for step in entry.name.split("."))
        lines[f"{name.removesuffix('.weight')}: {entry.verdict.removeprefix('taken as ')}"] = None
    return list(lines)


@pytest.mark.parametrize("name", TABLE)
def test_what_is_taken_of_a_model(name: str) -> None:
    plan = eg.matrices(made(name))
    assert {"heads": heads(plan), "taken": taken(plan)} == TABLE[name]
    assert plan.doubts == ()


@pytest.mark.parametrize("name", TABLE)
def test_every_matrix_that_is_taken_is_equalised_and_nothing_else_changes(name: str) -> None:
    model = made(name)
    plan = eg.matrices(model)
    given = {entry: torch.randn_like(entry.parameter) for entry in plan}
    for entry, gradient in given.items():
        entry.parameter.grad = gradient.clone()
    eg.equalize_(plan)
    for entry, gradient in given.items():
        assert entry.parameter.grad is not None
        assert entry.taken or torch.equal(entry.parameter.grad, gradient)
        for target in entry.targets:
            torch.testing.assert_close(target.fold(entry.parameter.grad), eg.polar(target.fold(gradient)))


TOKENS = {"input_ids": torch.arange(1, 7)[None]}
INPUTS: dict[str, dict[str, Tensor]] = {
    "ViT": {"pixel_values": torch.ones(1, 3, 16, 16)},
    "ResNet": {"pixel_values": torch.ones(1, 3, 32, 32)},
    "ResNet, headless": {"pixel_values": torch.ones(1, 3, 32, 32)},
    "ConvNeXt": {"pixel_values": torch.ones(1, 3, 32, 32)},
    "T5": {**TOKENS, "decoder_input_ids": torch.arange(1, 7)[None]},
    "SEW-D": {"input_values": torch.ones(1, 800)},
    "SigLIP": {**TOKENS, "pixel_values": torch.ones(1, 3, 16, 16)},
    "Whisper": {"input_features": torch.ones(1, 8, 40), "decoder_input_ids": torch.arange(1, 7)[None]},
}


@pytest.mark.parametrize("name", TABLE)
def test_a_forward_pass_finds_the_same_heads(name: str) -> None:
    model = made(name)
    found = heads(eg.matrices(model, example=INPUTS.get(name, TOKENS)))
    unused = [head for head in heads(eg.matrices(model)) if "original_module" in head]
    assert {*found, *unused} == {*heads(eg.matrices(model))}


@pytest.fixture
def attended(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Tensor, ...]]:
    """Query, key and value of every attention, as the forward pass uses them."""
    seen: list[tuple[Tensor, ...]] = []
    attention = nn.functional.scaled_dot_product_attention

    def recorded(query: Tensor, key: Tensor, value: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        seen.append((query.clone(), key.clone(), value.clone()))
        return attention(query, key, value, *args, **kwargs)

    def returned(function: Any) -> Any:
        def call(self: Any, *args: Any) -> Any:
            result = function(self, *args)
            seen.append(tuple(each.clone() for each in result))
            return result

        return call

    def chunked(function: Any) -> Any:
        def call(self: Any, fused: Tensor) -> Any:
            result = function(self, fused)
            seen.append(tuple(each.clone() for each in result.chunk(3, -1)))
            return result

        return call

    def given(function: Any) -> Any:
        def call(self: Any, query: Tensor, key: Tensor, value: Tensor, *args: Any) -> Any:
            seen.append((query.clone(), key.clone(), value.clone()))
            return function(self, query, key, value, *args)

        return call

    monkeypatch.setattr(nn.functional, "scaled_dot_product_attention", recorded)
    bloom = hf.models.bloom.modeling_bloom.BloomAttention
    codegen = hf.models.codegen.modeling_codegen.CodeGenAttention
    deberta = hf.models.deberta.modeling_deberta.DisentangledSelfAttention
    monkeypatch.setattr(bloom, "_reshape", returned(bloom._reshape))
    monkeypatch.setattr(codegen, "_attn", given(codegen._attn))
    monkeypatch.setattr(deberta, "transpose_for_scores", chunked(deberta.transpose_for_scores))
    return seen


@pytest.mark.parametrize(
    ("name", "order"),
    [
        ("GPT-2", "qkv"),
        ("GPT-NeoX", "qkv"),
        ("Bloom", "qkv"),
        ("Falcon", "qkv"),
        ("Falcon, heads", "qkv"),
        ("Falcon, groups", "qkv"),
        ("Phi-3", "qkv"),
        ("ModernBERT", "qkv"),
        ("GPT-BigCode", "qkv"),
        ("GPT-BigCode, heads", "qkv"),
        ("CodeGen", "qvk"),
        ("DeBERTa", "qkv"),
    ],
)
def test_the_rows_of_a_target_are_those_of_one_projection(
    name: str, order: str, attended: list[tuple[Tensor, ...]]
) -> None:
    """Noise on the rows of one target changes the query, the key or the value of the first attention, and nothing else."""
    model = made(name).eval()
    entry = next(entry for entry in eg.matrices(model).taken if len(entry.targets) == 3)
    for target, changed in zip(entry.targets, order, strict=True):
        runs = []
        for scale in (0.0, 1.0):
            attended.clear()
            kept = entry.parameter.detach().clone()
            with torch.no_grad():
                target.view(entry.parameter).add_(torch.randn(target.view(kept).shape), alpha=scale)
                model(**TOKENS)
                entry.parameter.copy_(kept)
            runs.append(attended[0])
        assert "".join(each for each, a, b in zip("qkv", *runs, strict=True) if not torch.equal(a, b)) == changed


@pytest.mark.parametrize("name", ["Mamba", "Mamba-2", "Jamba"])
def test_the_parts_of_a_mamba_layer_are_those_that_its_forward_pass_splits(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Mamba-2 splits its projection, and then what has passed the convolution, into three parts each."""
    seen: list[list[int]] = []
    split = Tensor.split

    def recorded(self: Tensor, sizes: Any, dim: int = 0) -> Any:
        seen.append(sizes)
        return split(self, sizes, dim)

    monkeypatch.setattr(Tensor, "split", recorded)
    model = made(name).eval()
    model(**TOKENS)
    (first, *rest) = [sizes for sizes in seen if isinstance(sizes, list | tuple) and len(sizes) == 3]
    expected = [first[0], *rest[0], first[2]] if name == "Mamba-2" else list(first)
    weight = "in_proj.weight" if name == "Mamba-2" else "x_proj.weight"
    assert [len(each) for each in matrices_of(model, weight)] == expected


def matrices_of(model: nn.Module, name: str) -> tuple[Tensor, ...]:
    """The matrices of one parameter, (out, in), or a stack of them."""
    entry = next(entry for entry in eg.matrices(model).taken if entry.name.endswith(name))
    return tuple(target.fold(entry.parameter.detach()) for target in entry.targets)


@pytest.mark.parametrize("name", ["Mixtral", "Llama 4", "Aria", "GPT-OSS"])
def test_the_matrices_of_experts_are_what_their_forward_pass_multiplies_by(name: str) -> None:
    model = made(name)
    experts = next(module for module in model.modules() if type(module).__name__.endswith("Experts"))
    with torch.no_grad():
        for each in experts.parameters():
            each.normal_(std=0.3 if each.ndim == 3 else 0.0)
    gate, up, down = *matrices_of(model, "gate_up_proj"), *matrices_of(model, "down_proj")
    x = torch.randn(5, gate.shape[-1])
    expected = torch.einsum("bi,goi->gbo", x, gate), torch.einsum("bi,goi->gbo", x, up)
    hidden = glu(*expected) if name == "GPT-OSS" else silu(expected[0]) * expected[1]
    out = torch.einsum("gbi,goi->gbo", hidden, down)
    for index, mine in enumerate(out):
        torch.testing.assert_close(through(experts, x, index, len(out)), mine, rtol=1e-4, atol=1e-5)


def glu(gate: Tensor, up: Tensor) -> Tensor:
    """The gate of GPT-OSS."""
    gate, up = gate.clamp(max=7.0), up.clamp(-7.0, 7.0)
    return (up + 1) * gate * torch.sigmoid(1.702 * gate)


def through(experts: nn.Module, x: Tensor, index: int, count: int) -> Tensor:
    """What one expert makes of every row."""
    if type(experts).__name__ == "Llama4TextExperts":
        return experts(x.repeat(count, 1)).reshape(count, len(x), -1)[index].detach()  # type: ignore[no-any-return]
    chosen = torch.full((len(x), 1), index)
    return experts(x, chosen, torch.ones(len(x), 1)).detach()  # type: ignore[no-any-return]


def test_gate_and_up_of_phi_3_are_what_its_layer_multiplies_by() -> None:
    model = made("Phi-3")
    (gate, up), (down,) = matrices_of(model, "mlp.gate_up_proj.weight"), matrices_of(model, "mlp.down_proj.weight")
    x = torch.randn(5, 32)
    torch.testing.assert_close(model.model.layers[0].mlp(x).detach(), (silu(x @ gate.T) * (x @ up.T)) @ down.T)


def test_a_conv1d_is_equalised_by_its_outputs() -> None:
    """Its weights are (in, out), and its fused ones are split along the outputs."""
    model = made("GPT-2")
    plan = eg.matrices(model)
    given = {entry: torch.randn_like(entry.parameter) for entry in plan.taken}
    for entry, gradient in given.items():
        entry.parameter.grad = gradient.clone()
    eg.equalize_(plan)
    for entry, gradient in given.items():
        parts = gradient.split(32, dim=1) if entry.name.endswith("c_attn.weight") else [gradient]
        expected = torch.cat([eg.polar(part.T).T for part in parts], dim=1)
        torch.testing.assert_close(entry.parameter.grad, expected, rtol=1e-4, atol=1e-5)
