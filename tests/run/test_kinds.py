"""A new kind of component is one hook with its facts, and one option of the config; the rest of core follows."""

from importlib.metadata import EntryPoint

import attrs
import pytest

from agentrl_core import config as configs
from agentrl_core import hookimpl
from agentrl_core.cli import main
from agentrl_core.config.schema import Component, RunConfig
from agentrl_core.plugins.discovery import Distribution
from agentrl_core.plugins.kinds import KINDS, kind
from agentrl_core.plugins.manager import PluginManager
from agentrl_core.run.component_checks import ComponentChecks
from agentrl_testing import isolated_plugins


@attrs.frozen(kw_only=True)
class ToolsConfig(RunConfig):
    """What `config/schema.py` would have for the new kind."""

    tools: tuple[Component, ...] = ()


@attrs.define(kw_only=True)
class Search:
    limit: int = 1
    seed: int = 0

    def call(self, text):
        """Never called."""


class Plugin:
    @hookimpl
    def register_tools(self, register):
        register("search", Search, summary="looks things up")
        register("plain", lambda text: text)


@pytest.fixture(params=[True, False], ids=["early", "late"])
def early(request):
    """Add the imaginary kind `tools`, which the checks build or only look at."""

    @kind("tool", option="tools", method="call", arguments={"seed": "seed"}, early=request.param)
    def register_tools(register):
        """What `plugins/kinds.py` would have for it."""

    yield request.param
    del KINDS["tools"]


@pytest.fixture
def registry(early):
    with isolated_plugins(Plugin()) as found:
        yield found


def checks_of(registry, tmp_path, *tools):
    config = configs.parse_as(ToolsConfig, {"data": "tasks.jsonl", "seed": 7, "tools": list(tools)})
    return ComponentChecks(configs.LoadedConfig(config, tmp_path), registry)


def test_its_options_are_checked_and_its_components_built(registry, early, tmp_path):
    wrong = checks_of(registry, tmp_path, {"use": "search", "limits": 2}, "serch", {"use": "search", "limit": "x"})
    assert list(wrong.components()) == [
        "tools.0.limits: unknown option of search (did you mean limit?)",
        "tools.1: no tool named 'serch' (did you mean search?)",
        'tools.2.limit: expected a whole number, found the text "x"',
    ]
    right = checks_of(registry, tmp_path, "search", {"use": "search", "limit": 3})
    assert list(right.components()) == []
    assert right.built.of("tools") == ([Search(seed=7), Search(limit=3, seed=7)] if early else [])
    assert right.built.build("tools", "tools.0", Component("search")) == Search(seed=7)
    assert right.built.used["tools:search"] == f"Plugin==0 {__name__}:Search"


def test_what_lacks_its_method_is_refused(registry, early, tmp_path):
    checks = checks_of(registry, tmp_path, "plain")
    message = "tools.0: 'plain' builds Plugin.register_tools.<locals>.<lambda>, which has no method `call`; "
    assert [line.startswith(message) for line in checks.components()] == ([True] if early else [])


def test_a_direct_entry_point_registers_it(early):
    point = EntryPoint(name="search", value=f"{__name__}:Search", group="agentrl.tools")
    package = PluginManager().add(Distribution(name="own", version="1", requires="", entry_points=[point]))
    assert [(entry.kind, entry.name) for entry in package.entries] == [("tools", "search")]
    assert package.notes == []


def test_it_is_listed(registry, monkeypatch, capsys):
    monkeypatch.setattr("agentrl_core.plugins.manager.load_registry", lambda: registry)
    monkeypatch.setattr("agentrl_core.cli.plugins.load_registry", lambda: registry)
    assert main(["plugins", "list", "--kind", "tools"]) == 0
    assert "looks things up" in capsys.readouterr().out
