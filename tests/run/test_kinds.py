"""A new kind of component is one hook with its facts, and one option of the config; the rest of core follows."""

from importlib.metadata import EntryPoint
from unittest.mock import patch

import attrs
import pytest

from agentrl_core import config as configs
from agentrl_core import hookimpl
from agentrl_core.cli import main
from agentrl_core.config.component import Component
from agentrl_core.config.schema import RunConfig
from agentrl_core.plugins.discovery import Distribution
from agentrl_core.plugins.kinds import KINDS, kind
from agentrl_core.plugins.manager import PluginManager
from agentrl_core.run.component_checks import ComponentChecks
from agentrl_testing import isolated_plugins


@attrs.frozen(kw_only=True)
class GadgetsConfig(RunConfig):
    """What `config/schema.py` would have for the new kind."""

    gadgets: tuple[Component, ...] = ()


@attrs.define(kw_only=True)
class Search:
    limit: int = 1
    seed: int = 0

    def call(self, text):
        """Never called."""


class Mute:
    def __init__(self):
        raise AssertionError("not built: a class is known not to have the method")


class Plugin:
    @hookimpl
    def register_gadgets(self, register):
        register("search", Search, summary="looks things up")
        register("plain", lambda text: text)
        register("mute", Mute)


@pytest.fixture(params=[True, False], ids=["early", "late"])
def early(request):
    """Add the imaginary kind `gadgets`, which the checks build or only look at."""

    with patch.dict(KINDS):

        @kind("gadget", option="gadgets", method="call", arguments={"seed": "seed"}, early=request.param)
        def register_gadgets(register):
            """What `plugins/kinds.py` would have for it."""

        yield request.param


@pytest.fixture
def registry(early):
    with isolated_plugins(Plugin()) as found:
        yield found


def checks_of(registry, tmp_path, *gadgets):
    config = configs.parse_as(GadgetsConfig, {"data": "tasks.jsonl", "seed": 7, "gadgets": list(gadgets)})
    return ComponentChecks(configs.LoadedConfig(config, tmp_path), registry)


def test_its_options_are_checked_and_its_components_built(registry, early, tmp_path):
    wrong = checks_of(registry, tmp_path, {"use": "search", "limits": 2}, "serch", {"use": "search", "limit": "x"})
    assert list(wrong.components()) == [
        "gadgets.0.limits: unknown option of search (did you mean limit?)",
        "gadgets.1: no gadget named 'serch' (did you mean search?)",
        'gadgets.2.limit: expected a whole number, found the text "x"',
    ]
    right = checks_of(registry, tmp_path, "search", {"use": "search", "limit": 3})
    assert list(right.components()) == []
    assert right.built.of("gadgets") == ([Search(seed=7), Search(limit=3, seed=7)] if early else [])
    assert right.built.build("gadgets", "gadgets.0", Component("search")) == Search(seed=7)
    assert right.built.used["gadgets:search"] == f"Plugin==0 {__name__}:Search"


def test_what_lacks_its_method_is_refused(registry, early, tmp_path):
    checks = checks_of(registry, tmp_path, "plain")
    message = "gadgets.0: 'plain' builds Plugin.register_gadgets.<locals>.<lambda>, which has no method `call`; "
    assert [line.startswith(message) for line in checks.components()] == ([True] if early else [])


def test_a_class_that_lacks_its_method_is_refused_before_it_is_built(registry, early, tmp_path):
    if not early:
        (line,) = checks_of(registry, tmp_path, "mute").components()
        assert line.startswith("gadgets.0: 'mute' builds Mute, which has no method `call`; ")


def test_an_argument_from_a_section_that_the_config_lacks_is_left_out(registry, tmp_path):
    with patch.dict(KINDS["gadgets"].arguments, {"limit": "rollout.agent.of_another_schema"}):
        checks = checks_of(registry, tmp_path)
        assert checks.built.build("gadgets", "gadgets.0", Component("search")) == Search(seed=7)


def test_a_direct_entry_point_registers_it(early):
    point = EntryPoint(name="search", value=f"{__name__}:Search", group="agentrl.gadgets")
    package = PluginManager().add(Distribution(name="own", version="1", requires="", entry_points=[point]))
    assert [(entry.kind, entry.name) for entry in package.entries] == [("gadgets", "search")]
    assert package.notes == []


def test_it_is_listed(registry, monkeypatch, capsys):
    monkeypatch.setattr("agentrl_core.plugins.manager.load_registry", lambda: registry)
    monkeypatch.setattr("agentrl_core.cli.plugins.load_registry", lambda: registry)
    assert main(["plugins", "list", "--kind", "gadgets"]) == 0
    assert "looks things up" in capsys.readouterr().out
