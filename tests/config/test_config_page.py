"""The page of options is the config's own classes, and says something about each option."""

import inspect

import attrs
import pytest
from tests.config.config_page import PAGE, docstrings, page

from agentrl_core.config import schema, sft

SECTIONS = [
    section
    for module in (schema, sft)
    for _, section in inspect.getmembers(module, inspect.isclass)
    if section.__module__ == module.__name__ and section.__name__.endswith("Config")
]


@pytest.mark.parametrize("section", SECTIONS)
def test_every_option_is_documented_where_it_is_defined(section):
    sections = [field.name for field in attrs.fields(section) if "Config" in str(field.type)]
    assert [field.name for field in attrs.fields(section) if field.name not in (*docstrings(section), *sections)] == []


def test_the_page_is_what_the_classes_say():
    assert PAGE.read_text(encoding="utf-8") == page(), "write it anew: python -m tests.config.config_page"


@pytest.mark.parametrize("option", ["model.path", "trainer.lr", "rollout.agent.mode", "gateway.upstreams.NAME.url"])
def test_the_page_has_options_of_every_depth(option):
    assert f"| `{option}` |" in PAGE.read_text(encoding="utf-8")
