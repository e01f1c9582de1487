"""The example that the package's docstring shows to authors of parsers."""

import textwrap

import pytest

from agentrl_core.api import parsing
from agentrl_testing import ToolParserSuite


class TestExample(ToolParserSuite):
    @pytest.fixture
    def parser(self):
        _, _, code = parsing.__doc__.partition('"Paris"}`:\n')
        names = {}
        exec(textwrap.dedent(code), names)
        assert names["CallParser"].recognise("<|im_start|>") is None
        return names["CallParser"].recognise("CALL name")

    @pytest.fixture
    def examples(self):
        return [('Well. CALL weather {"city": "Paris"}', "Well.", [("weather", {"city": "Paris"})])]
