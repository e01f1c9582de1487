"""The parser that fits a chat template: of a package, of core, or none because its package is not installed."""

import logging

import pytest

from agentrl_core import hookimpl
from agentrl_core.chat import Chat
from agentrl_core.chat.parsers.hermes import HermesParser
from agentrl_core.chat.parsers.llama3 import Llama3Parser
from agentrl_core.chat.parsers.qwen3_coder import Qwen3CoderParser
from agentrl_core.chat.recognition import recognise_parser
from agentrl_core.errors import ConfigError
from agentrl_core.plugins.catalog import providers
from agentrl_core.plugins.manager import load_registry
from agentrl_testing import isolated_plugins

QWEN3_CODER = "<function=f><parameter=a>"


def package(distribution, **parsers):
    """Return a plugin that registers parsers in the given order."""

    class Plugin:
        @hookimpl
        def register_tool_parsers(self, register):
            for name, parser in parsers.items():
                register(name, parser)

    Plugin.__name__ = distribution
    return Plugin()


def knows(text):
    """Return a parser that recognises templates with a text."""

    class Parser(HermesParser):
        @classmethod
        def recognise(cls, template):
            return cls() if text in template else None

    return Parser


@pytest.mark.parametrize(
    ("template", "parser"),
    [
        (QWEN3_CODER, Qwen3CoderParser),
        ("<|python_tag|>", Llama3Parser),
        ('<|start_header_id|> {"parameters": …}', Llama3Parser),
        ("<|im_start|>", HermesParser),
    ],
)
def test_core_alone_knows_its_own_formats(template, parser):
    with isolated_plugins() as registry:
        assert type(recognise_parser(template, registry)) is parser


def test_packages_are_asked_before_core_and_in_their_order():
    second, first, other = knows("<function="), knows("<parameter="), knows("<function=")
    with isolated_plugins(package("agentrl-a", z=first, a=second), package("agentrl-b", a=other)) as registry:
        assert type(recognise_parser(QWEN3_CODER, registry)) is first
        assert type(recognise_parser("<function=", registry)) is second
        registry.packages[1].status = "blocked"
        assert type(recognise_parser(QWEN3_CODER, registry)) is other


def test_a_parser_that_recognises_no_template_is_only_taken_by_its_name():
    with isolated_plugins(package("agentrl-a", quiet=HermesParser)) as registry:
        assert type(recognise_parser(QWEN3_CODER, registry)) is Qwen3CoderParser


def test_a_package_whose_parser_cannot_be_imported_is_left_out_with_a_warning(caplog):
    broken, sound = package("agentrl-a", bad="a_module_of_nobody:Parser"), package("agentrl-b", good=knows("MARK"))
    with isolated_plugins(broken, sound) as registry, caplog.at_level(logging.WARNING):
        assert recognise_parser("MARK", registry) is not None
    assert "tool parser 'bad' comes from agentrl-a 0, which failed to load" in caplog.text


@pytest.mark.parametrize("marker", providers("templates"))
def test_a_format_of_a_package_that_is_not_installed_is_never_taken_for_hermes(marker):
    with isolated_plugins() as registry, pytest.raises(ConfigError) as caught:
        recognise_parser(f"a {marker} b {QWEN3_CODER}", registry, where="m/chat_template.jinja")
    message = str(caught.value)
    assert message.startswith(f"m/chat_template.jinja: {marker!r} shows a format of tool calls")
    assert "pip install agentrl-parsers" in message
    assert "`gateway.tool_parser: NAME`" in message


def test_a_format_of_a_blocked_package_says_what_blocks_it():
    registry = load_registry(block=["agentrl_parsers"], environ={})
    with pytest.raises(ConfigError, match=r"agentrl-parsers 0.1.0 is blocked by plugins\.block \(or name a parser"):
        recognise_parser("[TOOL_CALLS]", registry)


def test_each_marker_shows_a_format_of_the_package_that_the_catalog_names():
    for marker, distribution in providers("templates").items():
        module = type(recognise_parser(marker, load_registry())).__module__
        assert module.partition(".")[0] == distribution.replace("-", "_")


def test_a_model_directory_is_read_with_the_parsers_of_the_given_registry(tmp_path, make_chat):
    template = "{{ messages[0].content }}[TOOL_CALLS]"
    assert type(make_chat(template).parser).__name__ == "MistralParser"  # of the installed packages
    with isolated_plugins() as registry:
        with pytest.raises(ConfigError, match="pip install agentrl-parsers"):
            Chat.from_directory(tmp_path, registry=registry)
        chat = Chat.from_directory(tmp_path, parser=HermesParser(), registry=registry)
    assert type(chat.parser) is HermesParser
