"""Tiny random models of the architectures that the instruments must understand."""

import functools
from typing import Any

import torch
import transformers as hf
from torch import nn

SMALL = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 64}
FORWARD = {"intermediate_size": 48}
ROOM = {"max_position_embeddings": 64}


def llama(**more):
    config = hf.LlamaConfig(**{**SMALL, **FORWARD, **ROOM, "num_key_value_heads": 2, **more})
    return hf.LlamaForCausalLM(config)


def gpt2(**more):
    config = hf.GPT2Config(
        n_embd=32,
        n_layer=2,
        n_head=4,
        vocab_size=64,
        n_positions=64,
        bos_token_id=1,
        eos_token_id=2,
        **more,
    )
    return hf.GPT2LMHeadModel(config)


def bert(**more):
    return hf.BertForMaskedLM(hf.BertConfig(**SMALL, **FORWARD, **ROOM, **more))


def gpt_neox(**more):
    return hf.GPTNeoXForCausalLM(hf.GPTNeoXConfig(**SMALL, **FORWARD, **ROOM, **more))


def opt(**more):
    config = hf.OPTConfig(**SMALL, **ROOM, ffn_dim=48, word_embed_proj_dim=32, **more)
    return hf.OPTForCausalLM(config)


def qwen3(**more):
    config = hf.Qwen3Config(**SMALL, **FORWARD, **ROOM, num_key_value_heads=2, head_dim=8, **more)
    return hf.Qwen3ForCausalLM(config)


def gemma2(**more):
    config = hf.Gemma2Config(
        **SMALL, **FORWARD, **ROOM, num_key_value_heads=2, head_dim=16, sliding_window=4, **more
    )
    return hf.Gemma2ForCausalLM(config)


def phi3(**more):
    config = hf.Phi3Config(
        **SMALL, **FORWARD, **ROOM, num_key_value_heads=2, pad_token_id=0, eos_token_id=2, **more
    )
    return hf.Phi3ForCausalLM(config)


def gpt_oss(**more):
    config = hf.GptOssConfig(
        **SMALL,
        **FORWARD,
        **ROOM,
        num_key_value_heads=2,
        head_dim=8,
        num_local_experts=2,
        num_experts_per_tok=2,
        rope_parameters={"rope_type": "default", "rope_theta": 1e4},
        **more,
    )
    return hf.GptOssForCausalLM(config)


def vit(**more):
    sizes = {**SMALL, "image_size": 16, "patch_size": 4, **FORWARD}
    sizes.pop("vocab_size")
    return hf.ViTForImageClassification(hf.ViTConfig(**sizes, **more))


class Encoder(nn.Module):
    """`nn.TransformerEncoder` over token numbers: attention by `nn.MultiheadAttention`."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(64, 32)
        layer = nn.TransformerEncoderLayer(32, 4, 48, batch_first=True, dropout=0.0)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(32, 64)

    def forward(self, input_ids, mask=None):
        return self.head(self.layers(self.embed(input_ids), mask=mask))


MODELS = {
    "llama": llama,
    "gpt2": gpt2,
    "bert": bert,
    "gpt_neox": gpt_neox,
    "opt": opt,
    "qwen3": qwen3,
    "gemma2": gemma2,
    "phi3": phi3,
    "gpt_oss": gpt_oss,
    "vit": vit,
    "encoder": Encoder,
}
LANGUAGE = [name for name in MODELS if name not in ("vit", "encoder", "bert")]


def build(name: str, seed: int = 0, **more) -> Any:
    """The model in eval mode, larger than its own start so that attention is not flat."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = MODELS[name](**more).eval()
        for parameter in model.parameters():
            if parameter.ndim == 2:
                nn.init.normal_(parameter, std=0.25)
    return model


@functools.cache
def built(name: str) -> Any:
    """One that is not changed by the test."""
    return build(name)


def inputs(name: str, batch: int = 3, length: int = 12, seed: int = 0) -> dict[str, torch.Tensor]:
    """What the model takes, with labels where it can make a loss of them."""
    generator = torch.Generator().manual_seed(seed)
    if name == "vit":
        return {
            "pixel_values": torch.randn(batch, 3, 16, 16, generator=generator),
            "labels": torch.zeros(batch, dtype=torch.long),
        }
    ids = torch.randint(1, 64, (batch, length), generator=generator)
    return {"input_ids": ids} if name == "encoder" else {"input_ids": ids, "labels": ids}
