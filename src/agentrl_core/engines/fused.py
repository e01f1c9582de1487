"""Convert the weights of a Hugging Face Llama, Qwen2 or Qwen3 model to the layout of `Decoder`.

Shapes: see `agentrl_core.engines.decoder`.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from typing import Any

import torch
import transformers
from torch import Tensor, nn

from agentrl_core.engines.decoder import Decoder

ARCHITECTURES = ("llama", "qwen2", "qwen3")
FIXED_ROPE = ("default", "linear", "llama3", "yarn")
"""Kinds of rotary embeddings whose frequencies do not change with the length of the sequence."""


def why_not_fused(model: nn.Module) -> str | None:
    """Return the first property of `model` that the decoder does not support; None if it can serve the model.

    Another layout of the model's parts is such a property: they are transformers' own, read at 5.23.
    """
    config: Any = model.config
    if config.model_type not in ARCHITECTURES:
        return f"architecture {config.model_type}"
    try:
        return _unsupported(model, config)
    except (AttributeError, KeyError, TypeError) as error:
        return f"the parts of {type(model).__name__} in transformers {transformers.__version__} ({error})"


def _unsupported(model: nn.Module, config: Any) -> str | None:
    rope = config.rope_parameters["rope_type"]
    found = {
        "sliding-window attention": any(
            kind != "full_attention" for kind in getattr(config, "layer_types", None) or ()
        ),
        f"activation {config.hidden_act}": config.hidden_act != "silu",
        f"rotary embedding {rope}": rope not in FIXED_ROPE,
        "weights other than float32": any(parameter.dtype != torch.float32 for parameter in model.parameters()),
        "biases beside those of queries, keys and values": any(_other_biases(model)),
    }
    reason = next((reason for reason, holds in found.items() if holds), None)
    if reason is None:
        # Reads the parts that the checks above did not: embedding, norm, head and the first layer's attention.
        for _ in itertools.islice(_fused_tensors(model), 4):
            pass
        _rope(model, 1)
    return reason


def _other_biases(model: nn.Module) -> Iterator[bool]:
    for layer in _layers(model):
        for linear in (layer.self_attn.o_proj, layer.mlp.gate_proj, layer.mlp.up_proj, layer.mlp.down_proj):
            yield linear.bias is not None


def fused_decoder(model: nn.Module, context_length: int) -> Decoder:
    """Return a decoder that shares no memory with `model` and serves positions below `context_length`."""
    config: Any = model.config
    embedding, final_norm, head, *layers = [tensor.clone() for tensor in _fused_tensors(model)]
    return Decoder(
        embedding=embedding,
        layers=layers,
        final_norm=final_norm,
        head=embedding if _tied(model) else head,
        rope=_rope(model, context_length),
        num_heads=config.num_attention_heads,
        num_kv_heads=config.num_key_value_heads,
        epsilon=config.rms_norm_eps,
    )


def refresh(decoder: Decoder, model: nn.Module) -> None:
    """Copy the weights of `model` into `decoder`, which was made from a model of the same architecture and shapes."""
    targets = [decoder.embedding, decoder.final_norm, decoder.head, *decoder.layers]
    for target, source in zip(targets, _fused_tensors(model), strict=True):
        target.copy_(source)


def _layers(model: nn.Module) -> Any:
    inner: Any = model.model
    return inner.layers


def _tied(model: nn.Module) -> bool:
    named: Any = model
    return named.lm_head.weight is named.model.embed_tokens.weight


def _fused_tensors(model: nn.Module) -> Iterator[Tensor]:
    """Yield embedding, final norm and head, then six tensors per layer; one at a time, to save memory."""
    named: Any = model
    config = named.config
    yield named.model.embed_tokens.weight.detach()
    yield _norm_weight(named.model.norm)
    yield named.lm_head.weight.detach()
    for layer in _layers(model):
        yield from _attention(layer, config.num_attention_heads, config.num_key_value_heads)
        up = torch.cat((layer.mlp.gate_proj.weight, layer.mlp.up_proj.weight)).detach()
        yield (up * _norm_weight(layer.post_attention_layernorm)).t().contiguous()
        yield layer.mlp.down_proj.weight.detach().t().contiguous()


def _attention(layer: Any, num_heads: int, num_kv_heads: int) -> Iterator[Tensor]:
    """Yield attention input, its bias, query and key norm, and attention output of a layer."""
    attention = layer.self_attn
    scale = 1 / math.sqrt(attention.head_dim)
    normed = hasattr(attention, "q_norm")
    # The scores' factor goes into the queries. With a query norm it goes into the norm's weight, which would cancel it
    # otherwise.
    factors = (1.0 if normed else scale, 1.0)
    linears = (attention.q_proj, attention.k_proj)
    weights = [_paired(linear.weight, attention.head_dim) * by for linear, by in zip(linears, factors, strict=True)]
    into = torch.cat((*weights, attention.v_proj.weight)).detach()
    yield (into * _norm_weight(layer.input_layernorm)).t().contiguous()
    if attention.q_proj.bias is None:
        yield torch.empty(0)
    else:
        biases = [_paired(linear.bias, attention.head_dim) * by for linear, by in zip(linears, factors, strict=True)]
        yield torch.cat((*biases, attention.v_proj.bias)).detach()
    if normed:
        q_norm = _paired(_norm_weight(attention.q_norm) * scale, attention.head_dim).expand(num_heads, -1)
        k_norm = _paired(_norm_weight(attention.k_norm), attention.head_dim).expand(num_kv_heads, -1)
        yield torch.cat((q_norm, k_norm))
    else:
        yield torch.empty(0)
    yield attention.o_proj.weight.detach().t().contiguous()


def _norm_weight(norm: Any) -> Tensor:
    """Return a norm's weight times the factor between the mean and the sum of squares."""
    weight: Tensor = norm.weight.detach()
    return weight * math.sqrt(weight.numel())


def _paired(weight: Tensor, head_dim: int) -> Tensor:
    """Reorder the rows of each head from (first half, second half) to the neighbouring pairs that `Decoder` rotates."""
    pairs = weight.view(-1, 2, head_dim // 2, *weight.shape[1:]).transpose(1, 2)
    return pairs.reshape(weight.shape)


def _rope(model: nn.Module, context_length: int) -> Tensor:
    """Return the rotation of each position as complex numbers, [context_length, E / 2], from the model's own module."""
    inner: Any = model.model
    cos, sin = inner.rotary_emb(torch.zeros(1), torch.arange(context_length).unsqueeze(0))
    half = cos.shape[-1] // 2
    return torch.complex(cos[0, :, :half].contiguous(), sin[0, :, :half].contiguous())
