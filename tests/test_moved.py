"""Modules that have moved answer at their old places, with a warning."""

import importlib
import sys
import warnings

import pytest

from agentrl_core.moved import MOVED, RENAMED


@pytest.fixture(autouse=True)
def not_imported_yet(monkeypatch):
    for name in [name for name in sys.modules if name in MOVED]:
        monkeypatch.delitem(sys.modules, name)


@pytest.mark.parametrize("old", MOVED)
def test_a_moved_module_has_what_is_at_its_new_place(old):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")  # the folder that it was in may have moved, too
        module = importlib.import_module(old)
    assert str(caught[-1].message).startswith(f"{old} is now {MOVED[old]};")
    target = importlib.import_module(MOVED[old])
    for name in [name for name in vars(target) if not name.startswith("_")]:
        assert getattr(module, name) is getattr(target, name)


def test_the_warning_names_the_line_that_imports():
    with pytest.warns(DeprecationWarning, match="now agentrl_core") as caught:
        from agentrl_core.workflow import Workflow
    assert caught[0].filename == __file__
    from agentrl_core.api import workflow

    assert Workflow is workflow.Workflow


def test_a_module_that_moved_to_a_package_names_what_to_install(monkeypatch):
    monkeypatch.setitem(MOVED, "agentrl_core.gone", "agentrl_of_nobody.gone")
    with pytest.raises(ModuleNotFoundError, match=r"is now agentrl_of_nobody\.gone: pip install agentrl-of-nobody$"):
        importlib.import_module("agentrl_core.gone")


@pytest.mark.parametrize("old", RENAMED)
def test_a_renamed_object_answers_to_its_old_name(old):
    module, _, name = old.rpartition(".")
    home, _, attr = RENAMED[old].partition(":")
    with pytest.warns(DeprecationWarning, match=rf"^{old} is now {home}\.{attr}; ") as caught:
        found = getattr(importlib.import_module(module), name)
    assert found is getattr(importlib.import_module(home), attr)
    assert caught[0].filename == __file__


def test_a_name_that_never_was_is_no_attribute():
    for module in ("agentrl_core", "agentrl_core.plugins", "agentrl_core.api.http"):
        with pytest.raises(AttributeError, match=f"module '{module}' has no attribute 'nothing'"):
            _ = importlib.import_module(module).nothing


def test_the_registry_is_loaded_by_its_old_name():
    with pytest.warns(DeprecationWarning, match="agentrl_core.plugins.manager.load_registry"):
        from agentrl_core.plugins import load_registry
    from agentrl_core.plugins.manager import load_registry as new

    assert load_registry is new


def test_modules_that_never_were_are_not_found():
    with pytest.raises(ModuleNotFoundError, match="nowhere"):
        importlib.import_module("agentrl_core.nowhere")
