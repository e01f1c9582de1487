"""Conformance tests of model builders, which need torch: `ModelSuite` for pytest, `check_model` for scripts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import pytest
import torch
from safetensors.torch import load_file

from agentrl_core.api.models import is_pretrained
from agentrl_core.api.options import construct
from agentrl_core.chat import Chat
from agentrl_core.errors import RunError
from agentrl_core.models.loading import load_causal_lm
from agentrl_testing.base import ConformanceSuite

Builder: TypeAlias = Callable[..., None]

_CONVERSATIONS: Sequence[Mapping[str, Any]] = (
    {"messages": [{"role": "user", "content": "Find the key."}, {"role": "assistant", "content": "It is 3 up."}]},
)


class ModelSuite(ConformanceSuite):
    """Conformance tests of model builders; define the fixture `builder`: the function with its options bound."""

    @pytest.fixture
    def builder(self) -> Builder:
        """Return the builder under test."""
        raise pytest.UsageError(f"{type(self).__name__} needs a fixture `builder`")

    def test_it_writes_a_model_that_loads_and_talks(self, builder: Builder, tmp_path: Path) -> None:
        """The directory has weights, config, tokenizer and chat template in the Hugging Face layout."""
        _check_model(builder, tmp_path)

    def test_the_same_seed_makes_the_same_weights(self, builder: Builder, tmp_path: Path) -> None:
        """Another seed makes other weights, unless the builder is marked as `pretrained`."""
        _check_seed(builder, tmp_path)


def check_model(builder: Builder, folder: Path) -> None:
    """Raise AssertionError if `builder` breaks its contract; write into `folder`."""
    for number, check in enumerate((_check_model, _check_seed)):
        (folder / str(number)).mkdir()
        check(builder, folder / str(number))


def _build(builder: Builder, directory: Path, seed: int = 0) -> Path:
    given = {"directory": directory, "seed": seed, "conversations": _CONVERSATIONS}
    # As a run builds a model: only with what the builder declares.
    construct(builder, {}, name="builder", where="model", injected=given)()
    return directory


def _check_model(builder: Builder, folder: Path) -> None:
    directory = _build(builder, folder / "model")
    model = load_causal_lm(directory, torch.float32, error=RunError)
    ids = Chat.from_directory(directory).encode("Find the key.")
    with torch.no_grad():
        logits = model(input_ids=torch.tensor([list(ids)])).logits
    assert torch.isfinite(logits).all(), "the model's logits are not all finite"
    assert logits.shape[-1] > max(ids), "the tokenizer has tokens that the model does not have"


def _check_seed(builder: Builder, folder: Path) -> None:
    first, again, other = (
        load_file(_build(builder, folder / name, seed) / "model.safetensors")
        for name, seed in (("first", 0), ("again", 0), ("other", 1))
    )
    assert first.keys() == again.keys(), "the same seed made models with different parameters"
    assert all(torch.equal(first[name], again[name]) for name in first), "the same seed made different weights"
    differ = any(not torch.equal(first[name], other[name]) for name in first)
    if is_pretrained(builder):
        assert not differ, "another seed made other weights, but the builder says that its models are pretrained"
    else:
        assert differ, "two seeds made the same weights; if they are trained ones, mark the builder as `pretrained`"
