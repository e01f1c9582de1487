"""Convert the weights of a Hugging Face Llama, Qwen2 or Qwen3 model to those of `Decoder`.

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
from agentrl_core.engines.layout import Kind, Layout

ARCHITECTURES = ("llama", "qwen2", "qwen3")
DTYPES = (torch.float32, torch.bfloat16)
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
        "weights other than float32 and bfloat16": any(
            parameter.dtype not in DTYPES for parameter in model.parameters()
        ),
        "biases beside those of queries, keys and values": any(_other_biases(model)),
    }
    reason = next((reason for reason, holds in found.items() if holds), None)
    if reason is None:
        # Reads the parts that the checks above did not: embedding, norm, head and the first layer's attention.
        for _ in itertools.islice(_fused_tensors(model, torch.float32), 8):
            pass
        _rope(model, 1, torch.float32)
    return reason


def _other_biases(model: nn.Module) -> Iterator[bool]:
    for layer in _layers(model):
        for linear in (layer.self_attn.o_proj, layer.mlp.gate_proj, layer.mlp.up_proj, layer.mlp.down_proj):
            yield linear.bias is not None


def fused_decoder(model: nn.Module, context_length: int, *, device: torch.device, dtype: torch.dtype) -> Decoder:
    """Return a decoder on `device` that computes in `dtype` and serves positions below `context_length`.

    It shares no memory with `model`.
    """
    config: Any = model.config
    layer_size = sum(weight.numel() for weight in _layers(model)[0].parameters())
    layout = Layout.of(device=device, dtype=dtype, layer_size=layer_size)
    tensors = _fused_tensors(model, dtype)
    embedding, final_norm = (layout.place(*next(tensors)) for _ in range(2))
    head = next(tensors)
    shared = _tied(model) and not layout.packed and layout.head_dtype == dtype
    return Decoder(
        embedding=embedding,
        final_norm=final_norm,
        head=embedding if shared else layout.place(*head),
        layers=[layout.place(kind, tensor) for kind, tensor in tensors],
        rope=_rope(model, context_length, dtype).to(device),
        num_heads=config.num_attention_heads,
        num_kv_heads=config.num_key_value_heads,
        head_dim=_layers(model)[0].self_attn.head_dim,
        epsilon=config.rms_norm_eps,
        packed=layout.packed,
    )


def refresh(decoder: Decoder, model: nn.Module) -> None:
    """Copy the weights of `model` into `decoder`, which was made from a model of the same architecture and shapes.

    The model may be on another device: its weights are merged there and copied from there, one at a time.
    """
    dtype = decoder.embedding.dtype
    layout = Layout(device=decoder.embedding.device, dtype=dtype, packed=decoder.packed)
    targets = [decoder.embedding, decoder.final_norm, decoder.head, *decoder.layers]
    for target, (kind, source) in zip(targets, _fused_tensors(model, dtype), strict=True):
        layout.replace(kind, target, source)


def _layers(model: nn.Module) -> Any:
    inner: Any = model.model
    return inner.layers


def _tied(model: nn.Module) -> bool:
    named: Any = model
    return named.lm_head.weight is named.model.embed_tokens.weight


def _fused_tensors(model: nn.Module, dtype: torch.dtype) -> Iterator[tuple[Kind, Tensor]]:
    """Yield embedding, final norm and head, then the tensors of each layer; one at a time, to save memory.

    For a decoder that computes in float32, whatever the model's own data type, norms are merged and rotary pairs
    neighbours (see `Decoder`).
    """
    named: Any = model
    merged = dtype == torch.float32
    yield "vector", named.model.embed_tokens.weight.detach()
    yield "vector", _norm_weight(named.model.norm) if merged else named.model.norm.weight.detach()
    yield "head", named.lm_head.weight.detach()
    for layer in _layers(model):
        if merged:
            yield from _merged_layer(layer, named.config.num_attention_heads, named.config.num_key_value_heads)
        else:
            yield from _plain_layer(layer, named.config.num_attention_heads, named.config.num_key_value_heads)


def _plain_layer(layer: Any, num_heads: int, num_kv_heads: int) -> Iterator[tuple[Kind, Tensor]]:
    """Yield the tensors of a layer as `Decoder` uses them in bfloat16."""
    attention, mlp = layer.self_attn, layer.mlp
    linears = (attention.q_proj, attention.k_proj, attention.v_proj)
    nothing = attention.q_proj.weight.new_empty(0).detach()
    yield "vector", layer.input_layernorm.weight.detach()
    yield "matrix", torch.cat([linear.weight for linear in linears]).detach()
    yield "vector", nothing if linears[0].bias is None else torch.cat([linear.bias for linear in linears]).detach()
    if hasattr(attention, "q_norm"):
        norms = ((attention.q_norm, num_heads), (attention.k_norm, num_kv_heads))
        yield "vector", torch.cat([norm.weight.detach().expand(count, -1) for norm, count in norms])
    else:
        yield "vector", nothing
    yield "matrix", attention.o_proj.weight.detach()
    yield "vector", layer.post_attention_layernorm.weight.detach()
    yield "matrix", torch.cat((mlp.gate_proj.weight, mlp.up_proj.weight)).detach()
    yield "matrix", mlp.down_proj.weight.detach()


def _merged_layer(layer: Any, num_heads: int, num_kv_heads: int) -> Iterator[tuple[Kind, Tensor]]:
    """Yield the tensors of a layer as `Decoder` uses them in float32."""
    attention, mlp = layer.self_attn, layer.mlp
    nothing = attention.q_proj.weight.new_empty(0).detach()
    yield "vector", nothing
    scale = 1 / math.sqrt(attention.head_dim)
    normed = hasattr(attention, "q_norm")
    # The scores' factor goes into the queries. With a query norm it goes into the norm's weight, which would cancel it
    # otherwise.
    factors = (1.0 if normed else scale, 1.0)
    linears = (attention.q_proj, attention.k_proj)
    weights = [
        _paired(linear.weight.float(), attention.head_dim) * by for linear, by in zip(linears, factors, strict=True)
    ]
    into = torch.cat((*weights, attention.v_proj.weight.float())).detach()
    yield "matrix", into * _norm_weight(layer.input_layernorm)
    if attention.q_proj.bias is None:
        yield "vector", nothing
    else:
        biases = [
            _paired(linear.bias.float(), attention.head_dim) * by for linear, by in zip(linears, factors, strict=True)
        ]
        yield "vector", torch.cat((*biases, attention.v_proj.bias.float())).detach()
    if normed:
        q_norm = _paired(_norm_weight(attention.q_norm) * scale, attention.head_dim).expand(num_heads, -1)
        k_norm = _paired(_norm_weight(attention.k_norm), attention.head_dim).expand(num_kv_heads, -1)
        yield "vector", torch.cat((q_norm, k_norm))
    else:
        yield "vector", nothing
    yield "matrix", attention.o_proj.weight.detach()
    yield "vector", nothing
    up = torch.cat((mlp.gate_proj.weight, mlp.up_proj.weight)).detach().float()
    yield "matrix", up * _norm_weight(layer.post_attention_layernorm)
    yield "matrix", mlp.down_proj.weight.detach()


def _norm_weight(norm: Any) -> Tensor:
    """Return a norm's weight times the factor between the mean and the sum of squares."""
    weight: Tensor = norm.weight.detach().float()
    return weight * math.sqrt(weight.numel())


def _paired(weight: Tensor, head_dim: int) -> Tensor:
    """Reorder the rows of each head from (first half, second half) to the neighbouring pairs that `Decoder` rotates."""
    pairs = weight.view(-1, 2, head_dim // 2, *weight.shape[1:]).transpose(1, 2)
    return pairs.reshape(weight.shape)


def _rope(model: nn.Module, context_length: int, dtype: torch.dtype) -> Tensor:
    """Return the rotation of each position, from the model's own module.

    In float32 as complex numbers, [context_length, E / 2]; in bfloat16 as cosine and sine, [2, context_length, E].
    """
    inner: Any = model.model
    device = inner.embed_tokens.weight.device
    positions = torch.arange(context_length, device=device).unsqueeze(0)
    cos, sin = inner.rotary_emb(torch.zeros(1, device=device, dtype=dtype), positions)
    if dtype != torch.float32:
        return torch.cat((cos, sin))
    half = cos.shape[-1] // 2
    return torch.complex(cos[0, :, :half].contiguous(), sin[0, :, :half].contiguous())
