"""Modules that have moved answer at their old places, with a warning."""

import importlib
import sys
import warnings

import pytest

from agentrl_core.moved import MOVED


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


def test_the_registry_is_loaded_by_its_old_name():
    with pytest.warns(DeprecationWarning, match="agentrl_core.plugins.manager.load_registry"):
        from agentrl_core.plugins import load_registry
    from agentrl_core.plugins.manager import load_registry as new

    assert load_registry is new


def test_modules_that_never_were_are_not_found():
    with pytest.raises(ModuleNotFoundError, match="nowhere"):
        importlib.import_module("agentrl_core.nowhere")
