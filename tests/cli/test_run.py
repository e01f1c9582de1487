"""agentrl run: what of the command line gets to training."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

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
            return SimpleNamespace(nothing_learned="nothing was learned: x" if self.given[1]["name"] == "dead" else "")

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


def test_a_run_that_learned_nothing_has_an_exit_code_of_its_own(agentrl, trained):
    result = agentrl("run", "config.yaml", "--name", "dead")
    assert (result.code, result.err) == (3, "error: nothing was learned: x\n")


def test_verbose_reaches_the_console(agentrl, trained, tmp_path, monkeypatch):
    (tmp_path / "config.yaml").write_text("trackers: [jsonl, console, {use: curve}]", encoding="utf-8")
    assert agentrl("run", str(tmp_path / "config.yaml"), "seed=1", "--verbose").code == 0
    ((_, options),) = trained
    assert options["overrides"] == [
        "seed=1",
        'trackers=[{"use": "jsonl"}, {"use": "console", "verbose": true}, {"use": "curve"}]',
    ]
