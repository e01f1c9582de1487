from pathlib import Path
from typing import ClassVar

import attrs
import pytest

from agentrl_core import hookimpl
from agentrl_core.config.component import Component
from agentrl_core.errors import ConfigError, PluginError, UsageError
from agentrl_core.plugins.manager import load_registry
from agentrl_core.plugins.registry import Entry
from agentrl_testing.plugins import isolated_plugins


@attrs.frozen(kw_only=True)
class Loss:
    clip: float = 0.2
    seed: int = 0
    needs: ClassVar = frozenset()

    def loss(self, batch):
        """Never called."""


def plugin(name, **components):
    """A plugin object that registers scorers, or losses where the component is a class."""

    class Plugin:
        @hookimpl
        def register_scorers(self, register):
            for key, value in components.items():
                if not isinstance(value, type):
                    register(key, value, summary=f"the {key} of {name}")

        @hookimpl
        def register_losses(self, register):
            for key, value in components.items():
                if isinstance(value, type):
                    register(key, value)

    Plugin.__name__ = name
    return Plugin()


def half(request):
    return 0.5


@pytest.fixture
def registry():
    with isolated_plugins(
        plugin("one", gsm8k=half, lazy="json:dumps", mine=Loss, bad="json:nowhere", text="json:__name__"),
        plugin("two", gsm8k="json:loads"),
        core=False,
    ) as registry:
        yield registry


def test_an_entry_knows_who_registered_it(registry):
    entry = registry.find("scorers", "lazy")
    assert entry == Entry(
        kind="scorers", name="lazy", distribution="one", version="0", value="json:dumps", summary="the lazy of one"
    )
    assert registry.load("scorers", "lazy") is __import__("json").dumps
    assert registry.find("losses", "mine").path == f"{__name__}:Loss"


def test_describe_pins_package_version_and_path(registry, tmp_path):
    assert registry.describe("scorers", "lazy") == "one==0 json:dumps"
    assert registry.describe("scorers", "two/gsm8k") == "two==0 json:loads"
    assert registry.describe("scorers", "json:dumps") == f"json:dumps ({__import__('json').__file__})"
    (tmp_path / "reg_mine.py").write_text("def score(request): return 1.0", encoding="utf-8")
    described = registry.describe("scorers", "reg_mine.py:score", base_dir=tmp_path)
    assert described == f"reg_mine:score ({tmp_path}/reg_mine.py)"


def test_a_bare_name_of_two_packages_is_refused_with_what_to_write(registry):
    with pytest.raises(PluginError) as info:
        registry.find("scorers", "gsm8k")
    assert str(info.value) == "scorer 'gsm8k' is registered by one and two; write one/gsm8k or two/gsm8k"
    assert registry.clashes() == [str(info.value)]
    assert registry.load("scorers", "one/gsm8k") is half
    assert registry.load("scorers", "Two/gsm8k") is __import__("json").loads


@pytest.mark.parametrize(
    ("ref", "message"),
    [
        ("gsm8", "no scorer named 'gsm8' (did you mean gsm8k?)"),
        ("zzz", "no scorer named 'zzz' (known: bad, gsm8k, lazy, text)"),
        ("one/lazzy", "one 0 has no scorer 'lazzy' (did you mean lazy?)"),
        ("two/zzz", "two 0 has no scorer 'zzz' (it has gsm8k)"),
        ("ones/lazy", "no package 'ones' that plugs into agentrl is installed (did you mean one?)"),
        ("bad", "scorer 'bad' comes from one 0, which failed to load: module json (*) has no 'nowhere'"),
        ("text", "'text' is str 'json', which cannot be called as a scorer"),
        ("json:__name__", "'json:__name__' is str 'json', which cannot be called as a scorer"),
        (
            "agents/my_agent.MathAgent",
            "*, nor a place in code; if it is a file, write agents/my_agent.py:MathAgent",
        ),
        ("nowhere_at_all:x", "there is no module 'nowhere_at_all': *"),
    ],
)
def test_what_cannot_be_loaded_says_why(registry, ref, message):
    with pytest.raises(PluginError) as info:
        registry.load("scorers", ref)
    start, _, end = message.partition("*")
    assert str(info.value).startswith(start)
    assert str(info.value).endswith(end)
    with pytest.raises(UsageError, match=r"^config\.yaml:3: data: "):
        registry.load("scorers", ref, where="config.yaml:3: data")


def test_a_name_of_another_kind_is_unknown(registry):
    with pytest.raises(PluginError, match="no loss named 'gsm8k'"):
        registry.find("losses", "gsm8k")


def test_entries_are_sorted_by_name_then_package(registry):
    assert [(item.name, item.distribution) for item in registry.entries("scorers")] == [
        ("bad", "one"),
        ("gsm8k", "one"),
        ("gsm8k", "two"),
        ("lazy", "one"),
        ("text", "one"),
    ]


def test_build_gives_options_and_injected_arguments(registry):
    assert registry.build("losses", Component("mine", {"clip": 1}), seed=3, other=4) == Loss(clip=1.0, seed=3)


def test_build_places_every_message(registry):
    for component, message in [
        (Component("mine", {"clipp": 1}), "config.yaml:9: loss.clipp: unknown option of mine (did you mean clip?)"),
        (Component("mime"), "config.yaml:9: loss: no loss named 'mime' (did you mean mine?)"),
    ]:
        with pytest.raises((ConfigError, PluginError)) as info:
            registry.build("losses", component, where="config.yaml:9: loss")
        assert str(info.value) == message
    with pytest.raises(ConfigError, match=r"^loss\.clipp: unknown"):
        registry.build("losses", Component("mine", {"clipp": 1}))


def test_files_are_relative_to_the_base_dir(registry, tmp_path):
    (tmp_path / "reg_scorer.py").write_text("def score(request, *, by=1): return by", encoding="utf-8")
    component = Component("reg_scorer.py:score", {"by": 2})
    assert registry.build("scorers", component, base_dir=tmp_path)(None) == 2
    with pytest.raises(PluginError, match=rf"^data: there is no file {Path.cwd()}/reg_scorer\.py$"):
        registry.load("scorers", "reg_scorer.py:score", where="data")


def test_an_import_error_keeps_its_cause_through_the_registry(registry, tmp_path):
    (tmp_path / "reg_needs.py").write_text("import a_package_that_is_not_here", encoding="utf-8")
    with pytest.raises(PluginError, match="a_package_that_is_not_here") as info:
        registry.build("workflows", Component("reg_needs.py:Agent"), base_dir=tmp_path, where="workflow")
    assert isinstance(info.value.__cause__, ModuleNotFoundError)


def test_the_components_of_core_are_all_named_lazily():
    with isolated_plugins() as registry:
        (core,) = registry.packages
        assert (core.status, core.notes) == ("ok", [])
        assert all(isinstance(entry.value, str) and entry.summary for entry in core.entries)
        assert registry.describe("losses", "grpo").endswith(" agentrl_core.losses.grpo:GRPO")


@pytest.mark.parametrize("use", ["bare", "agentrl-late/bare"])
def test_a_named_use_of_a_broken_package_raises_from_the_original(install, use):
    hooks = (
        "from agentrl_core import hookimpl\n@hookimpl\ndef register_scorers(register):\n    register('bare', 'x:y')\n"
    )
    install(
        "agentrl-late", {"agentrl": {"late": "reg_late"}}, {"reg_late.py": hooks + "    raise OSError('no disk')\n"}
    )
    with pytest.raises(PluginError) as info:
        load_registry(environ={}).find("scorers", use)
    assert str(info.value) == "scorer 'bare' comes from agentrl-late 1.0, which failed to load: OSError: no disk"
    assert isinstance(info.value.__cause__, OSError)


def test_an_unknown_name_tells_of_packages_that_could_not_say_what_they_have(install):
    install("agentrl-gone", {"agentrl": {"gone": "reg_gone"}}, {"reg_gone.py": "import a_package_that_is_not_here"})
    with pytest.raises(
        PluginError, match=r"no store named 'couch'.*; agentrl-gone 1\.0 failed to load: ModuleNot"
    ) as info:
        load_registry(environ={}).find("stores", "couch")
    assert isinstance(info.value.__cause__, ModuleNotFoundError)


def test_an_unknown_name_of_a_package_that_is_missing_says_how_to_install_it():
    with isolated_plugins() as registry, pytest.raises(PluginError, match=r"; pip install agentrl-parsers$"):
        registry.load("tool_parsers", "mistral")
    blocked = load_registry(block=["agentrl-parsers"], environ={})
    with pytest.raises(PluginError, match=r"; agentrl-parsers 0\.1\.0 is blocked by plugins\.block; pip install"):
        blocked.load("tool_parsers", "mistral")


def test_a_name_of_a_blocked_package_says_what_blocks_it(install):
    install("agentrl-made", {"agentrl.scorers": {"made": "x:y"}})
    registry = load_registry(block=["AgentRL_Made"], environ={})
    with pytest.raises(
        PluginError, match=r"^scorer 'made' comes from agentrl-made 1\.0, which is blocked by plugins\.block$"
    ):
        registry.find("scorers", "made")
    assert "made" not in {entry.name for entry in registry.entries("scorers")}


def test_blocking_one_of_two_packages_resolves_a_clash(install):
    install("agentrl-a", {"agentrl.scorers": {"same": "json:dumps"}})
    install("agentrl-b", {"agentrl.scorers": {"same": "json:loads"}})
    with pytest.raises(PluginError, match="agentrl-a and agentrl-b"):
        load_registry(environ={}).load("scorers", "same")
    assert load_registry(environ={"AGENTRL_BLOCK_PLUGINS": "agentrl-a"}).load("scorers", "same").__name__ == "loads"


def test_an_unknown_name_without_a_package_is_answered_with_how_to_bring_one():
    with isolated_plugins() as registry, pytest.raises(PluginError) as told:
        registry.find("trackers", "wandb")
    assert "(known: console, curve, jsonl); one of your own can be named as file.py:Name" in str(told.value)
    assert str(told.value).endswith("plugins new agentrl-NAME --kind tracker")


def test_a_registry_names_the_modules_of_hooks_and_components(registry):
    assert registry.modules == {__name__.partition(".")[0], "json"}
    assert {"agentrl_core", "agentrl_mcp"} <= load_registry().modules
