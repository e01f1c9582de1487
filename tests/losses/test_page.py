"""What cookbook/losses.md tells is what there is."""

import inspect
import re
from pathlib import Path
from typing import get_args

import pytest
import torch

from agentrl_core import config
from agentrl_core.losses.aggregate import Aggregation
from agentrl_core.plugins.manager import load_registry
from agentrl_core.run.checks import check_config
from agentrl_testing import check_correction, check_loss
from agentrl_testing.losses import loss_batch

PAGE = (Path(__file__).parent.parent.parent / "cookbook/losses.md").read_text(encoding="utf-8")


def rows_of(first):
    """Name -> further cells of the table whose first column has that heading."""
    (table,) = re.findall(rf"^\| `?{first}`? \|.*\n\|[-|]+\n((?:\|.*\n)+)", PAGE, re.MULTILINE)
    rows = [[cell.strip() for cell in line[1:-1].split("|")] for line in table.splitlines()]
    return {row[0].strip("`"): row[1:] for row in rows}


@pytest.fixture(scope="module")
def registry():
    return load_registry()


(OWN,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


@pytest.mark.parametrize("text", re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL))
def test_each_section_is_a_valid_config(text, tmp_path):
    (tmp_path / "my_losses.py").write_text(OWN, encoding="utf-8")
    (tmp_path / "tasks.jsonl").write_text('{"id": "t", "query": "q"}\n', encoding="utf-8")
    (tmp_path / "config.yaml").write_text(
        "model: {use: tiny}\ndata: tasks.jsonl\nrollout: {agent: {mode: online}}\n" + text, encoding="utf-8"
    )
    assert check_config(config.load(tmp_path / "config.yaml"))[0] == []


def test_the_loss_and_the_correction_of_the_page_keep_their_contracts():
    scope: dict = {}
    exec(OWN, scope)  # the page's own
    check_loss(scope["Leashed"]())
    check_correction(scope["Unsure"]())
    batch = loss_batch()
    found = scope["Leashed"](floor=0.5).loss(batch)
    apart = (batch.reference_logprobs - batch.logprobs).exp().clamp(0.5, 1.0)
    torch.testing.assert_close(found.per_token, -apart.detach() * batch.advantages * batch.logprobs)
    kept = scope["Unsure"](nats=0.5).correct(batch, found).keep
    assert kept.tolist() == [float(m and e >= 0.5) for m, e in zip(batch.mask, batch.entropy, strict=True)]
    assert 0 < kept.sum() < batch.mask.sum()


def built_in(registry, kind):
    return {entry.name for entry in registry.entries(kind) if entry.distribution == "agentrl-core"}


def test_every_loss_is_told_with_what_it_brings_along(registry):
    rows = rows_of("loss")
    assert set(rows) == built_in(registry, "losses")
    for name, (_, aggregation, advantage, source) in rows.items():
        calculator = registry.load("losses", name)
        defaults = getattr(calculator, "aggregation_defaults", {})
        assert aggregation == f"`{defaults.get('aggregation', 'token_mean')}`", name
        recommended = dict(getattr(calculator, "advantage_default", {"use": "grpo"}))
        told = [f"`{recommended.pop('use')}`", *(f"`{key}: {value}`" for key, value in recommended.items())]
        assert advantage.removesuffix(", not used").lower() == ", ".join(told).lower(), name
        assert all(paper in inspect.getdoc(calculator) for paper in re.findall(r"arXiv [0-9.]+", source)), name


def test_every_correction_and_every_aggregation_is_told(registry):
    corrections = rows_of("correction")
    assert set(corrections) == built_in(registry, "corrections")
    for name, (_, reads) in corrections.items():
        assert reads == ", ".join(sorted(registry.load("corrections", name).needs)), name
    assert set(rows_of("aggregation")) == set(get_args(Aggregation))


def test_every_loss_tells_its_normaliser(registry):
    for kind in ("losses", "corrections"):
        for name in built_in(registry, kind):
            assert "normaliser" in inspect.getdoc(registry.load(kind, name)).lower(), name
