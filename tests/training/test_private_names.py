"""Private names of torch and transformers: they are there, they are all listed, and what is gone is told."""

import ast
import inspect
import logging
from importlib.metadata import version
from pathlib import Path

import pytest
import torch
from tests.training.attention.test_models import build
from torch import nn
from transformers import cache_utils, modeling_layers

import agentrl_core
from agentrl_core.engines import layout
from agentrl_core.errors import ConfigError
from agentrl_core.training import private_names
from agentrl_core.training.attention import branch_cache, rect
from agentrl_core.training.gradient_checkpointing import recomputable_layers
from agentrl_core.training.policy import Policy

PACKAGE = Path(agentrl_core.__file__).parent
USED = {
    "torch.ops.aten": (torch.ops.aten, ["_scaled_dot_product_flash_attention_for_cpu"]),
    "torch.ops.mkldnn": (torch.ops.mkldnn, list(layout._OPERATORS)),
    "transformers.modeling_layers": (modeling_layers, ["GradientCheckpointingLayer"]),
    "transformers.cache_utils": (cache_utils, ["DynamicCache", *sorted(branch_cache._CONTINUED)]),
    "transformers.DynamicCache": (cache_utils.DynamicCache, ["update_conv_state", "update_recurrent_state"]),
}


@pytest.mark.parametrize("place", USED)
def test_the_installed_version_has_the_names(place):
    owner, names = USED[place]
    package = place.partition(".")[0]
    missing = [name for name in names if not hasattr(owner, name)]
    assert missing == [], (
        f"{package} {version(package)} has no {', '.join(missing)} in {place}; training was written against "
        f"{package} {private_names.READ_AT[package]}: read what took their place"
    )


@pytest.mark.parametrize("method", ["update_conv_state", "update_recurrent_state"])
def test_the_cache_is_updated_by_the_arguments_that_past_overrides(method):
    own, theirs = (inspect.signature(getattr(kind, method)) for kind in (branch_cache.Past, cache_utils.DynamicCache))
    assert list(own.parameters)[1:4] == list(theirs.parameters)[1:4], f"transformers {version('transformers')}"


def private_attributes(path):
    """Attributes with a leading underscore that a module reads of what is not its own."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    nodes = list(ast.walk(tree))
    reads = [node for node in nodes if isinstance(node, ast.Attribute) and node.attr.startswith("_")]
    own = {node.attr for node in reads if isinstance(node.value, ast.Name) and node.value.id in {"self", "cls"}}
    own |= {node.name for node in nodes if isinstance(node, ast.FunctionDef | ast.ClassDef)}
    return {node.attr for node in reads if node.attr not in own and not node.attr.startswith("__")}


@pytest.mark.parametrize("folder", ["training", "models", "engines", "losses", "batching"])
def test_no_other_module_reads_private_names(folder):
    found = {path.name: names for path in (PACKAGE / folder).rglob("*.py") if (names := private_attributes(path))}
    allowed = {
        # The layers' attribute that `recomputing` sets itself; `recomputable_layers` tries whether it has an effect.
        "training": {"gradient_checkpointing.py": {"_gradient_checkpointing_func"}},
        # Operators of oneDNN, which the layout looks for before it uses them.
        "engines": {
            "decoder.py": {"_linear_pointwise"},
            "layout.py": {"_reorder_linear_weight", "_is_mkldnn_bf16_supported"},
        },
    }.get(folder, {})
    assert found == allowed, "look such names up in training/private_names.py, and add them to USED"


def test_a_name_that_is_gone_is_told_with_the_version():
    with pytest.raises(
        ConfigError, match=rf"torch {torch.__version__.replace('+', '.')} has no _gone, .*; install torch"
    ):
        private_names.looked_up("torch", torch.ops.aten, "_gone")


def test_without_the_cpu_kernel_another_attention_is_used(monkeypatch, caplog):
    def gone():
        raise private_names.changed("torch", "has no such kernel")

    monkeypatch.setattr(rect, "cpu_flash_attention", gone)
    caplog.set_level(logging.INFO, logger="agentrl_core")
    assert Policy(build("qwen3")).attention == "dfs"
    assert "'rect' does not fit Qwen3ForCausalLM: ConfigError: torch" in caplog.text
    with pytest.raises(ConfigError, match=r"trainer\.attention: 'rect' does not fit .* has no such kernel, which"):
        Policy(build("qwen3"), attention="rect")


def test_layers_that_ignore_gradient_checkpointing_are_refused(monkeypatch):
    class Deaf(nn.Module):
        pass

    model = build("qwen3")
    monkeypatch.setattr(modeling_layers, "GradientCheckpointingLayer", Deaf)
    with pytest.raises(ConfigError, match=r"transformers \S+ does not recompute layers by gradient_checkpointing"):
        recomputable_layers(model)
