import importlib
import logging
import sys

import pytest

from agentrl_core import hookimpl
from agentrl_core.errors import ConfigError, PluginError, RunError
from agentrl_core.plugins.manager import PluginManager, load_registry
from agentrl_testing.plugins import check_plugin, isolated_plugins, plugin_problems

HOOKS = "from agentrl_core import hookimpl\n@hookimpl\ndef register_scorers(register):\n    "


def loaded(name="agentrl-made", **options):
    return load_registry(environ={}, **options).package(name)


def manager_of(*plugins, **options):
    manager = PluginManager(**options)
    for number, plugin in enumerate(plugins):
        manager.add_module(manager.add_package(f"agentrl-{number}", "1"), plugin, "made")
    return manager


def test_core_registers_by_its_own_entry_point():
    core = load_registry(environ={}).package("agentrl-core")
    assert core.status == "ok"
    assert {"losses", "engines", "stores", "commands"} <= {entry.kind for entry in core.entries}


def test_hooks_and_direct_entry_points_fill_one_table(install):
    install(
        "agentrl-made",
        {"agentrl": {"made": "plug_both"}, "agentrl.stores": {"disk": "plug_never:Disk"}},
        {"plug_both.py": HOOKS + "register('a', len, summary='length')\n", "plug_never.py": "1 / 0"},
    )
    package = loaded()
    found = {(entry.kind, entry.name, entry.path, entry.summary) for entry in package.entries}
    assert found == {("scorers", "a", "builtins:len", "length"), ("stores", "disk", "plug_never:Disk", "")}
    assert "plug_never" not in sys.modules


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("import a_package_that_is_not_here", "ModuleNotFoundError: No module named 'a_package_that_is_not_here'"),
        ("raise SystemExit('no licence')", "SystemExit: no licence"),
        (HOOKS + "raise OSError('no disk')", "OSError: no disk"),
        (HOOKS + "raise SystemExit(3)", "SystemExit: 3"),
        (HOOKS + "register('F 1', len)", "scorer 'F 1': a name is lower-case letters, digits, '_' and '-'"),
        (HOOKS + "register('_f1', len)", "scorer '_f1': a name is lower-case letters, digits, '_' and '-'"),
        (HOOKS + "register('f1', 'mod.attr')", "scorer 'f1': 'mod.attr' is not of the form module:attr"),
        (HOOKS + "register('f1', len), register('f1', max)", "scorer 'f1' is registered twice"),
        (
            HOOKS.replace("hookimpl\ndef", "hookimpl(wrapper=True)\ndef") + "yield",
            "register_scorers is a hook wrapper, which agentrl does not call; write a plain @hookimpl",
        ),
        (
            HOOKS.replace("register)", "register, color, context)") + "pass",
            "uses arguments 'color', 'context' of register_scorers); have ",
        ),
    ],
)
def test_a_faulty_package_is_set_aside_and_harms_no_other(install, text, reason):
    install("agentrl-made", {"agentrl": {"made": "plug_faulty"}}, {"plug_faulty.py": text})
    install("agentrl-well", {"agentrl": {"well": "plug_well"}}, {"plug_well.py": HOOKS + "register('w', len)"})
    registry = load_registry(environ={})
    package = registry.package("agentrl-made")
    assert package.status == "error"
    assert reason in package.reason
    assert package.error.__traceback__ is not None
    assert registry.load("scorers", "w") is len


def test_a_package_for_a_later_core_says_so(install):
    text = HOOKS.replace("register)", "register, context)") + "pass"
    install(
        "agentrl-made", {"agentrl": {"made": "plug_newer"}}, {"plug_newer.py": text}, requires=["agentrl-core>=9.2"]
    )
    reason = loaded().reason
    assert reason.startswith("written for a newer agentrl-core (uses argument 'context' of register_scorers); have ")
    assert reason.endswith(", it declares agentrl-core>=9.2")


def test_a_package_without_a_range_is_told_apart(install):
    text = HOOKS.replace("register)", "register, context)") + "pass"
    install("agentrl-made", {"agentrl": {"made": "plug_unranged"}}, {"plug_unranged.py": text}, requires=[])
    assert loaded().reason.endswith(", it declares no range of agentrl-core")


def test_a_direct_entry_point_with_a_bad_name_or_value_is_an_error(install):
    install("agentrl-made", {"agentrl.scorers": {"Bad": "x:y"}})
    assert loaded().reason == "scorer 'Bad': a name is lower-case letters, digits, '_' and '-'"
    install("agentrl-other", {"agentrl.scorers": {"good": "just_a_module"}})
    assert loaded("agentrl-other").reason == "scorer 'good': 'just_a_module' is not of the form module:attr"


def test_one_good_module_of_a_broken_package_is_not_used(install):
    install(
        "agentrl-made",
        {"agentrl": {"good": "plug_half", "bad": "plug_not_there"}},
        {"plug_half.py": HOOKS + "register('half', len)"},
    )
    with pytest.raises(
        PluginError, match=r"scorer 'half' comes from agentrl-made 1\.0, which failed to load: ModuleNot"
    ):
        load_registry(environ={}).load("scorers", "half")


def test_near_misses_are_noted(install):
    text = HOOKS + (
        "pass\n@hookimpl\ndef register_scorer(register): pass\n"
        "@hookimpl(optionalhook=True)\ndef of_a_later_core(): pass\n"
        "@hookimpl(specname='run_start')\ndef follow(run): pass\ndef register_losses(register): pass\n"
    )
    groups = {"agentrl": {"made": "plug_near"}, "agentrl.scorer": {"f1": "x:y"}, "agentrl.zzz": {"z": "x:y"}}
    install("agentrl-made", groups, {"plug_near.py": text})
    package = loaded()
    assert package.status == "ok"
    assert sorted(package.notes) == [
        "'register_losses' lacks @hookimpl; it is never called",
        "entry-point group 'agentrl.scorer': there is no kind 'scorer' (did you mean scorers?); 'f1' is ignored",
        "entry-point group 'agentrl.zzz': there is no kind 'zzz'; 'z' is ignored",
        "no hook is called 'register_scorer' (did you mean register_scorers?); it is never called",
        "no hook is called 'run_start' (did you mean run_started?); it is never called",
    ]


def test_a_blocked_package_is_not_imported_but_its_metadata_are_listed(install):
    install(
        "agentrl-made",
        {"agentrl": {"made": "plug_blocked"}, "agentrl.stores": {"disk": "plug_blocked:Disk"}},
        {"plug_blocked.py": "raise AssertionError('imported')"},
    )
    package = load_registry(environ={"AGENTRL_BLOCK_PLUGINS": "agentrl-made"}).package("agentrl-made")
    assert (package.status, package.reason, package.error) == ("blocked", "AGENTRL_BLOCK_PLUGINS", None)
    assert [entry.name for entry in package.entries] == ["disk"]


def test_an_empty_set_to_load_leaves_core_alone():
    registry = load_registry(environ={"AGENTRL_LOAD_PLUGINS": ""})
    assert [package.distribution for package in registry.packages if package.status == "ok"] == ["agentrl-core"]


def test_tracing_prints_each_hook_call(capsys):
    class Plugin:
        @hookimpl
        def weights_published(self, version):
            pass

    manager_of(Plugin(), trace=True).notify("weights_published", run="calm-otter", version=3)
    assert capsys.readouterr().err == "agentrl-0:made weights_published(version=3)\n"


def test_the_variable_turns_tracing_on(capsys):
    load_registry(environ={"AGENTRL_TRACE_PLUGINS": "1"})
    assert "agentrl-core:agentrl-core register_losses(register=" in capsys.readouterr().err
    load_registry(environ={"AGENTRL_TRACE_PLUGINS": "0"})
    assert capsys.readouterr().err == ""


class Failing:
    @hookimpl
    def step_finished(self, run, step):
        raise KeyError("loss/mean")

    @hookimpl
    def configure(self):
        raise ConfigError("trainer.lr: too high")

    @hookimpl
    def adapt_agent(self, agent):
        raise ValueError("no such agent")


class Following:
    def __init__(self):
        self.seen = []

    @hookimpl
    def step_finished(self, step):
        self.seen.append(step)


def test_a_lifecycle_hook_that_raises_stops_the_run_and_is_named():
    with pytest.raises(RunError, match=r"^step_finished of agentrl-0 1 raised KeyError: 'loss/mean'$") as info:
        manager_of(Failing()).notify("step_finished", run=None, step=1)
    assert isinstance(info.value.__cause__, KeyError)


@pytest.mark.parametrize("on_error", ["stop", "warn"])
def test_errors_raised_on_purpose_always_stop(on_error):
    with pytest.raises(ConfigError, match=r"^trainer\.lr: too high$"):
        manager_of(Failing(), on_error=on_error).notify("configure", config=None)


def test_on_request_a_lifecycle_hook_that_raises_is_logged_and_the_others_called(caplog):
    following = Following()
    with caplog.at_level(logging.WARNING):
        manager_of(following, Failing(), on_error="warn").notify("step_finished", run=None, step=7)
    assert following.seen == [7]
    assert [record.getMessage() for record in caplog.records] == [
        "step_finished of agentrl-1 1 raised KeyError: 'loss/mean'"
    ]


def test_hooks_of_a_package_that_failed_later_are_not_called(install):
    text = "from agentrl_core import hookimpl\n@hookimpl\ndef run_started(run):\n    raise AssertionError('called')\n"
    groups = {"agentrl": {"a": "plug_follows", "b": "plug_not_there"}}
    install("agentrl-made", groups, {"plug_follows.py": text})
    registry = load_registry(environ={})
    assert registry.package("agentrl-made").hooks == ["run_started"]
    registry.hooks.notify("run_started", run=None)


def test_adapters_are_asked_until_one_answers():
    def adapter(answer):
        class Adapter:
            @hookimpl
            def adapt_agent(self, agent, options):
                return answer and (answer, agent, options)

        return Adapter()

    manager = manager_of(adapter(None), adapter("mine"), adapter(None))
    assert manager.adapt_agent("agent", {"a": 1}) == ("mine", "agent", {"a": 1})
    assert manager_of(adapter(None)).adapt_agent("agent", {}) is None
    with pytest.raises(PluginError, match="adapt_agent of agentrl-0 1 raised ValueError: no such agent"):
        manager_of(Failing()).adapt_agent("agent", {})


def test_isolated_plugins_sees_nothing_that_is_installed(install):
    install("agentrl-made", {"agentrl.scorers": {"made": "x:y"}})
    with isolated_plugins(Following()) as registry:
        assert [package.distribution for package in registry.packages] == ["agentrl-core", "Following"]


def test_isolated_plugins_cleans_the_import_path(tmp_path):
    (tmp_path / "plug_isolated.py").write_text("value = len", encoding="utf-8")
    before = list(sys.path)
    with isolated_plugins(core=False) as registry:
        assert registry.load("scorers", "plug_isolated:value", base_dir=tmp_path) is len
        assert str(tmp_path) in sys.path
    assert sys.path == before
    assert "plug_isolated" not in sys.modules


def test_check_plugin_accepts_a_sound_package(install):
    site = install(
        "agentrl-made", {"agentrl": {"made": "plug_sound"}}, {"plug_sound.py": HOOKS + "register('sound', len)"}
    )
    metadata = next(site.glob("*.dist-info/METADATA"))
    text = metadata.read_text(encoding="utf-8").rstrip()
    metadata.write_text(f"{text}\nSummary: does\n\n# agentrl-made\n\n    scorer: sound\n", encoding="utf-8")
    check_plugin("agentrl-made")


def test_check_plugin_tells_every_fault(install):
    install(
        "agentrl-made",
        {"agentrl": {"made": "plug_poor"}, "agentrl.scorer": {"x": "x:y"}},
        {"plug_poor.py": "import httpx2\n" + HOOKS + "register('poor', 'plug_poor:nothing')"},
        requires=[],
    )
    with pytest.raises(AssertionError) as info:
        check_plugin("agentrl-made")
    file = sys.modules["plug_poor"].__file__
    assert str(info.value).splitlines() == [
        "agentrl-made 1.0:",
        'declares no range of agentrl-core: write dependencies = ["agentrl-core>=0.1,<0.2"]',
        "entry-point group 'agentrl.scorer': there is no kind 'scorer' (did you mean scorers?); 'x' is ignored",
        "plug_poor imports httpx2: import it where it is used",
        f"scorer 'poor' comes from agentrl-made 1.0, which failed to load: module plug_poor ({file}) has no 'nothing'",
        "has no summary: write project.description",
        "its README does not show how to name poor",
    ]


def test_a_package_that_did_not_load_has_one_problem(install):
    install("agentrl-made", {"agentrl": {"made": "plug_not_there"}})
    registry = load_registry(environ={})
    (problem,) = plugin_problems(registry.package("agentrl-made"), registry)
    assert problem.startswith("failed to load: ModuleNotFoundError")


def test_isolated_plugins_leaves_what_was_loaded_before(tmp_path, monkeypatch):
    (tmp_path / "loaded_before.py").write_text("", encoding="utf-8")
    with monkeypatch.context() as path:
        path.syspath_prepend(tmp_path)
        module = importlib.import_module("loaded_before")
    try:
        with isolated_plugins():
            sys.path.append(str(tmp_path))
        assert sys.modules["loaded_before"] is module
    finally:
        del sys.modules["loaded_before"]
