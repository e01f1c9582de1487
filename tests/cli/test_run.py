"""agentrl run: what of the command line gets to training."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType

import pytest


@pytest.fixture
def trained(monkeypatch):
    """Take the place of training; gives what each trainer that trained was made with."""
    calls = []

    class Trainer:
        def __init__(self, config, **options):
            self.given = (config, options)

        def train(self):
            calls.append(self.given)

    module = ModuleType("agentrl_core.run")
    module.Trainer = Trainer
    monkeypatch.setitem(sys.modules, "agentrl_core.run", module)
    return calls


def test_config_overrides_and_name_get_to_training(agentrl, trained):
    assert agentrl("run", "config.yaml", "trainer.steps=9", "seed=1", "--name", "calm-otter").code == 0
    assert agentrl("run", "config.yaml").code == 0
    (named, options), (_, defaults) = trained
    assert named == Path("config.yaml")
    assert (list(options["overrides"]), options["name"]) == (["trainer.steps=9", "seed=1"], "calm-otter")
    assert (list(defaults["overrides"]), defaults["name"]) == ([], "")
