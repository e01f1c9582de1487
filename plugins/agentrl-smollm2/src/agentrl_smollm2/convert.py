"""Convert a quantized Llama model in a GGUF file into a Hugging Face directory with fp32 weights.

transformers reads GGUF, too. It builds a tokenizer that does not split numbers into digits, as this model's own does,
and marks the model as quantized, which then cannot be saved. So the file is read with `gguf`, the format's own package.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from agentrl_core.errors import ConfigError

if TYPE_CHECKING:
    import numpy as np
    from gguf import GGUFReader

_SPECIAL = 3
"""Type of control tokens in `tokenizer.ggml.token_type`."""
_OUTER = {"token_embd.weight": "model.embed_tokens.weight", "output_norm.weight": "model.norm.weight"}
_IN_LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
"""Names in a layer `blk.N.*`, and their names in `model.layers.N.*` of transformers."""


def convert(source: Path, directory: Path) -> None:
    """Write the model in the GGUF file `source` into `directory`.

    Raises `ConfigError` if the file cannot be read, or is no Llama model with tied embeddings and the tokenizer of
    SmolLM.
    """
    from gguf import GGUFReader

    try:
        reader = GGUFReader(source)
    except (ValueError, IndexError, UnicodeDecodeError) as error:
        raise ConfigError(f"{source}: not a readable GGUF file: {error}; install its package again") from error
    facts = _Facts(reader, source)
    facts.expect("general.architecture", "llama")
    facts.expect("tokenizer.ggml.model", "gpt2")
    facts.expect("tokenizer.ggml.pre", "smollm")
    directory.mkdir(parents=True, exist_ok=True)
    _write_config(facts, directory)
    _write_tokenizer(facts, directory)
    _write_weights(reader, facts, directory / "model.safetensors")


class _Facts:
    """Metadata of a GGUF file by key; raises `ConfigError` for a missing one."""

    def __init__(self, reader: GGUFReader, source: Path) -> None:
        self._reader = reader
        self.source = source

    def __getitem__(self, key: str) -> Any:
        field = self._reader.get_field(key)
        if field is None:
            raise ConfigError(f"{self.source}: the key {key} is missing; expected SmolLM2-135M-Instruct")
        return field.contents()

    def expect(self, key: str, value: str) -> None:
        """Raise `ConfigError` if the value of `key` is another one."""
        if self[key] != value:
            raise ConfigError(f"{self.source}: {key} is {self[key]!r:.60}; expected {value!r}")


def _write_config(facts: _Facts, directory: Path) -> None:
    import transformers

    library: Any = transformers  # only partly typed
    config = library.LlamaConfig(
        architectures=["LlamaForCausalLM"],
        vocab_size=len(facts["tokenizer.ggml.tokens"]),
        hidden_size=facts["llama.embedding_length"],
        intermediate_size=facts["llama.feed_forward_length"],
        num_hidden_layers=facts["llama.block_count"],
        num_attention_heads=facts["llama.attention.head_count"],
        num_key_value_heads=facts["llama.attention.head_count_kv"],
        max_position_embeddings=facts["llama.context_length"],
        # Stored as a 32-bit float, 9.999999747378752e-06 for 1e-5.
        rms_norm_eps=float(f"{facts['llama.attention.layer_norm_rms_epsilon']:.6g}"),
        rope_parameters={"rope_type": "default", "rope_theta": facts["llama.rope.freq_base"]},
        tie_word_embeddings=True,
        bos_token_id=facts["tokenizer.ggml.bos_token_id"],
        eos_token_id=facts["tokenizer.ggml.eos_token_id"],
        pad_token_id=facts["tokenizer.ggml.padding_token_id"],
        dtype="float32",
    )
    config.save_pretrained(directory)
    library.GenerationConfig(
        bos_token_id=config.bos_token_id,
        eos_token_id=config.eos_token_id,
        pad_token_id=config.pad_token_id,
        do_sample=True,
    ).save_pretrained(directory)


def _write_tokenizer(facts: _Facts, directory: Path) -> None:
    """Write the byte-level BPE tokenizer; every digit is a token, as in the pre-tokenizer "smollm" of llama.cpp."""
    import transformers
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    tokens, kinds = facts["tokenizer.ggml.tokens"], facts["tokenizer.ggml.token_type"]
    merges = [tuple(merge.split(" ")) for merge in facts["tokenizer.ggml.merges"]]
    core = Tokenizer(models.BPE({token: index for index, token in enumerate(tokens)}, merges))
    core.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
        ]
    )
    core.decoder = decoders.ByteLevel()
    special = [token for token, kind in zip(tokens, kinds, strict=True) if kind == _SPECIAL]
    core.add_special_tokens([AddedToken(token, normalized=False, special=True) for token in special])
    wrap: Any = transformers.PreTrainedTokenizerFast  # not typed
    named = {
        name: tokens[facts[f"tokenizer.ggml.{key}_token_id"]]
        for name, key in (
            ("bos_token", "bos"),
            ("eos_token", "eos"),
            ("unk_token", "unknown"),
            ("pad_token", "padding"),
        )
    }
    tokenizer = wrap(
        tokenizer_object=core,
        **named,
        extra_special_tokens=[token for token in special if token not in named.values()],
        model_max_length=facts["llama.context_length"],
        clean_up_tokenization_spaces=False,
    )
    tokenizer.chat_template = facts["tokenizer.chat_template"]
    tokenizer.save_pretrained(directory)


def _write_weights(reader: GGUFReader, facts: _Facts, path: Path) -> None:
    from gguf import dequantize
    from safetensors.numpy import save_file

    heads = {"attn_q": facts["llama.attention.head_count"], "attn_k": facts["llama.attention.head_count_kv"]}
    weights = {}
    for tensor in reader.tensors:
        name, part = _name(tensor.name, facts.source)
        weight: np.ndarray[Any, Any] = dequantize(tensor.data, tensor.tensor_type)
        weights[name] = _halves(weight, heads[part]) if part in heads else weight
    save_file(weights, path, metadata={"format": "pt"})


def _name(name: str, source: Path) -> tuple[str, str]:
    """Return a weight's name in transformers, and its part of a layer, "" outside of layers."""
    if name in _OUTER:
        return _OUTER[name], ""
    block, _, rest = name.partition(".")
    number, _, rest = rest.partition(".")
    part, _, suffix = rest.partition(".")
    if (block, suffix) != ("blk", "weight") or part not in _IN_LAYER:
        raise ConfigError(f"{source}: unknown weight {name}; expected those of a Llama model with tied embeddings")
    return f"model.layers.{number}.{_IN_LAYER[part]}.weight", part


def _halves(weight: np.ndarray[Any, Any], heads: int) -> np.ndarray[Any, Any]:
    """Reorder the rows of a projection of queries or keys: GGUF's Llama rotates neighbours, transformers halves.

    A head of GGUF has its rows as (pair, member of the pair), one of transformers as (member, pair).
    """
    import numpy as np

    pairs = weight.reshape(heads, -1, 2, weight.shape[-1])
    return np.ascontiguousarray(pairs.swapaxes(1, 2)).reshape(weight.shape)
