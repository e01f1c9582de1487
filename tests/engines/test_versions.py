"""The embedded engine uses parts of torch and transformers that may change without notice: it says so, and goes on."""

import copy
from importlib.metadata import version

import pytest
import torch
from packaging.version import Version

from agentrl_core.engines import batch
from agentrl_core.engines.fused import why_not_fused
from agentrl_testing.engines import ask, run

READ_AT = {
    "torch": (
        "2.13",
        "engines/batch.py compiles with torch.jit.script, which is deprecated, and decoder.py uses torch.ops.mkldnn",
    ),
    "transformers": ("5.23", "engines/fused.py reads the parts of Llama and Qwen models by name"),
}


@pytest.mark.parametrize("package", READ_AT)
def test_the_installed_version_was_read(package):
    read, why = READ_AT[package]
    installed = Version(version(package)).release[:2]
    assert installed <= Version(read).release, (
        f"{package} {version(package)} is newer than {read}, at which this was read: {why}. Read it again, run "
        "`pytest tests/engines -m 'slow or not slow'`, then raise the number here and there."
    )


@pytest.mark.parametrize("error", [RuntimeError("no longer supported"), AttributeError("script")])
def test_without_torchscript_the_engine_samples_the_same(start, monkeypatch, caplog, error):
    compiled = run(ask(start(), [1, 2, 3], max_tokens=8, seed=1))

    def script(_):
        raise error

    monkeypatch.setattr(batch.torch.jit, "script", script)
    plain = run(ask(start(), [1, 2, 3], max_tokens=8, seed=1))
    assert f"torch {torch.__version__} does not compile" in caplog.text
    assert plain.ids == compiled.ids
    assert plain.logprobs == pytest.approx(compiled.logprobs, abs=1e-5)


@pytest.mark.parametrize("part", ["model.rotary_emb", "model.layers.0.self_attn.q_proj", "lm_head"])
def test_a_model_of_other_parts_is_served_by_generate(policies, load, part):
    model = copy.deepcopy(load(policies("qwen3")))
    assert why_not_fused(model) is None
    owner, _, name = part.rpartition(".")
    delattr(model.get_submodule(owner), name)
    assert f"the parts of Qwen3ForCausalLM in transformers {version('transformers')}" in why_not_fused(model)
