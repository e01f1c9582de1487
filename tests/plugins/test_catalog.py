"""Hints for what is not installed are what the packages say of themselves, and that is what they register."""

import pytest
from tests.plugins.catalog import CATALOG, provided, text

from agentrl_core.plugins.catalog import install_hint, providers
from agentrl_core.plugins.manager import load_registry


def test_the_catalog_is_what_the_packages_say():
    assert CATALOG.read_text(encoding="utf-8") == text(), "write it anew: python -m tests.plugins.catalog"


@pytest.mark.parametrize(
    "kind",
    ["scorers", "tools", "tool_middleware", "contexts", "datasets", "workflows", "tool_parsers", "commands"],
)
def test_packages_register_what_they_say(kind):
    own = [entry for entry in load_registry().entries(kind) if entry.distribution.startswith("agentrl-")]
    registered = {entry.name: entry.distribution for entry in own if entry.distribution != "agentrl-core"}
    assert registered == provided().get(kind, {})


def test_there_is_one_default_scorer_and_a_package_that_has_it():
    (default,) = providers("default_scorer")
    assert default in providers("scorers")


def test_a_hint_says_how_to_install():
    assert install_hint("scorers", "math").endswith("pip install agentrl-math")
    assert install_hint("scorers", "of_nobody") == ""
