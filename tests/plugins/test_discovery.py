from importlib.metadata import EntryPoint

from agentrl_core.plugins.discovery import (
    CORE,
    Distribution,
    block_rule,
    canonical,
    core_version,
    declared_commands,
    find_distributions,
)


def named(name):
    return next(item for item in find_distributions() if item.name == name)


def test_a_distribution_is_found_with_all_its_doors(install):
    install(
        "agentrl-made", {"agentrl": {"made": "made"}, "agentrl.scorers": {"a": "x:a"}, "console_scripts": {"c": "x:c"}}
    )
    made = named("agentrl-made")
    assert (made.version, made.requires) == ("1.0", ">=0.1,<0.2")
    assert {point.group for point in made.entry_points} == {"agentrl", "agentrl.scorers"}


def test_a_distribution_without_a_door_is_left_out(install):
    install("unrelated", {"agentrlx": {"a": "x:a"}, "console_scripts": {"c": "x:c"}})
    assert "unrelated" not in {item.name for item in find_distributions()}


def test_the_range_on_core_is_read_in_every_spelling(install):
    install(
        "made-a", {"agentrl": {"a": "a"}}, requires=["torch>=2", "agentrl_core[testing] (>=0.3) ; python_version>'3'"]
    )
    install("made-b", {"agentrl": {"b": "b"}}, requires=["agentrl-corex>=9"])
    assert (named("made-a").requires, named("made-b").requires) == (">=0.3", "")


def test_core_is_there_even_without_metadata(install, monkeypatch):
    assert [item.is_core for item in find_distributions()].count(True) == 1
    monkeypatch.setattr("sys.path", [str(install("agentrl-made", {"agentrl": {"made": "made"}}))])
    core, made = find_distributions()
    assert (core.name, core.version, made.name) == (CORE, "unknown", "agentrl-made")
    assert [point.value for point in core.entry_points] == ["agentrl_core.plugins.builtins"]
    assert core_version() == "unknown"


def test_stale_metadata_of_core_do_not_hide_its_components(install, monkeypatch):
    monkeypatch.setattr("sys.path", [str(install(CORE, {"agentrl.commands": {"old": "x:y"}}))])
    (core,) = find_distributions()
    assert [point.value for point in core.entry_points] == ["agentrl_core.plugins.builtins"]


def test_a_damaged_distribution_is_named_by_its_module(install, monkeypatch):
    site = install("agentrl-made", {"agentrl": {"made": "made_module"}})
    next(site.glob("*.dist-info/METADATA")).write_text("", encoding="utf-8")
    damaged = named("made_module")
    assert (damaged.version, damaged.requires) == ("unknown", "")


def test_names_are_compared_as_indexes_do():
    assert canonical(" AgentRL_Good.x ") == "agentrl-good-x"


def blocked(environ, *names, block=()):
    rule = block_rule(block, environ)
    return [rule(Distribution(name=name, version="1", requires="", entry_points=())) for name in names]


def test_a_variable_or_the_config_blocks_by_any_spelling_of_the_name():
    assert blocked({"AGENTRL_BLOCK_PLUGINS": "Agentrl_A, b"}, "agentrl-a", "B", "c") == [
        "AGENTRL_BLOCK_PLUGINS"
    ] * 2 + [""]
    assert blocked({}, "agentrl-a", "b", block=["agentrl.a"]) == ["plugins.block", ""]


def test_the_set_to_load_is_exact_and_may_be_empty():
    assert blocked({"AGENTRL_LOAD_PLUGINS": "a"}, "a", "b") == ["", "AGENTRL_LOAD_PLUGINS"]
    assert blocked({"AGENTRL_LOAD_PLUGINS": ""}, "a") == ["AGENTRL_LOAD_PLUGINS"]


def test_core_is_never_blocked():
    assert blocked({"AGENTRL_LOAD_PLUGINS": "", "AGENTRL_BLOCK_PLUGINS": CORE}, "AgentRL_Core", block=[CORE]) == [""]


def test_declared_commands_name_their_package_and_heed_blocks(install):
    install("agentrl-made", {"agentrl.commands": {"greet": "x:greet"}})
    assert declared_commands({})["greet"] == "agentrl-made"
    assert "greet" not in declared_commands({"AGENTRL_BLOCK_PLUGINS": "agentrl-made"})


def test_no_entry_point_is_loaded(install, monkeypatch):
    monkeypatch.setattr(EntryPoint, "load", lambda self: (_ for _ in ()).throw(AssertionError("imported")))
    install("agentrl-made", {"agentrl": {"made": "made"}})
    assert named("agentrl-made")
