"""The conversion on small files, written by gguf: names, the order of rows, and what is no such model."""

import numpy as np
import pytest
from gguf import GGMLQuantizationType, GGUFWriter, quantize
from safetensors.numpy import load_file
from tokenizers.pre_tokenizers import ByteLevel

from agentrl_core.api.models import pretrained
from agentrl_core.errors import ConfigError
from agentrl_smollm2.convert import convert
from agentrl_testing import ModelSuite

HIDDEN, HEADS, KV_HEADS, MLP = 64, 4, 2, 96
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
TOKENS = [*SPECIAL, *sorted(ByteLevel.alphabet()), "ab"]
TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def shapes():
    """Weights of one layer: GGUF's name -> (rows, columns), or (entries,)."""
    keys = HIDDEN // HEADS * KV_HEADS
    layer = {
        "attn_norm": (HIDDEN,),
        "ffn_norm": (HIDDEN,),
        "attn_q": (HIDDEN, HIDDEN),
        "attn_output": (HIDDEN, HIDDEN),
        "attn_k": (keys, HIDDEN),
        "attn_v": (keys, HIDDEN),
        "ffn_gate": (MLP, HIDDEN),
        "ffn_up": (MLP, HIDDEN),
        "ffn_down": (HIDDEN, MLP),
    }
    return {
        **{f"blk.0.{name}.weight": shape for name, shape in layer.items()},
        "token_embd.weight": (len(TOKENS), HIDDEN),
        "output_norm.weight": (HIDDEN,),
    }


def write(path, *, pre="smollm", without=(), extra=()):
    """Write a GGUF file; return its weights by name."""
    draw = np.random.default_rng(0)
    writer = GGUFWriter(path, "llama")
    writer.add_context_length(32)
    writer.add_embedding_length(HIDDEN)
    writer.add_block_count(1)
    writer.add_feed_forward_length(MLP)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_rope_freq_base(100_000.0)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(TOKENS)
    writer.add_token_types([3 if token in SPECIAL else 1 for token in TOKENS])
    writer.add_token_merges(["a b"])
    for name, index in (("bos", 1), ("eos", 2), ("unk", 0), ("pad", 2)):
        getattr(writer, f"add_{name}_token_id")(index)
    if "template" not in without:
        writer.add_chat_template(TEMPLATE)
    weights = {name: draw.standard_normal(shape, dtype=np.float32) for name, shape in shapes().items()}
    for name, weight in {**weights, **{name: np.zeros(32, np.float32) for name in extra}}.items():
        if name.endswith("attn_v.weight"):
            kind = GGMLQuantizationType.Q8_0
            writer.add_tensor(name, quantize(weight, kind), raw_dtype=kind)
        else:
            writer.add_tensor(name, weight)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return weights


class TestConformance(ModelSuite):
    @pytest.fixture
    def builder(self, tmp_path):
        write(tmp_path / "m.gguf")

        def build(directory):
            convert(tmp_path / "m.gguf", directory)

        return pretrained(build)


def test_weights_get_their_names_and_queries_their_order_of_rows(tmp_path):
    given = write(tmp_path / "m.gguf")
    convert(tmp_path / "m.gguf", tmp_path / "out")
    made = load_file(tmp_path / "out" / "model.safetensors")
    assert len(made) == len(given)
    assert all(weight.dtype == np.float32 for weight in made.values())
    np.testing.assert_array_equal(made["model.embed_tokens.weight"], given["token_embd.weight"])
    np.testing.assert_array_equal(made["model.layers.0.mlp.down_proj.weight"], given["blk.0.ffn_down.weight"])
    np.testing.assert_allclose(made["model.layers.0.self_attn.v_proj.weight"], given["blk.0.attn_v.weight"], atol=0.02)
    # Row r of a head is member r // half of pair r % half, and stands at 2 * pair + member in the file.
    size = HIDDEN // HEADS
    for part, heads, name in (("q_proj", HEADS, "attn_q"), ("k_proj", KV_HEADS, "attn_k")):
        rows, file = made[f"model.layers.0.self_attn.{part}.weight"], given[f"blk.0.{name}.weight"]
        for head in range(heads):
            for row in range(size):
                member, pair = divmod(row, size // 2)
                np.testing.assert_array_equal(rows[head * size + row], file[head * size + 2 * pair + member])


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"pre": "llama-bpe"}, "tokenizer.ggml.pre is 'llama-bpe'; expected 'smollm'"),
        ({"without": ("template",)}, "the key tokenizer.chat_template is missing"),
        ({"extra": ("blk.0.attn_q.bias",)}, "unknown weight blk.0.attn_q.bias"),
    ],
)
def test_another_model_is_refused(tmp_path, change, told):
    write(tmp_path / "m.gguf", **change)
    with pytest.raises(ConfigError, match=told) as refused:
        convert(tmp_path / "m.gguf", tmp_path / "out")
    assert "m.gguf" in str(refused.value)
