import pytest

from agentrl_core.api.tools import ToolResult
from agentrl_tool_middleware.truncate import Truncate

IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,"}}


@pytest.mark.parametrize(
    ("keep", "shown"),
    [
        ("head", "abcd\n[… 6 characters left out …]"),
        ("tail", "[… 6 characters left out …]\nghij"),
        ("both", "ab\n[… 6 characters left out …]\nij"),
    ],
)
def test_a_long_text_is_cut(pass_through, keep, shown):
    assert pass_through(Truncate(max_chars=4, keep=keep), answer="abcdefghij").text == shown
    assert pass_through(Truncate(max_tokens=1, keep=keep), answer="abcdefghij").text == shown
    assert pass_through(Truncate(max_chars=10, keep=keep), answer="abcdefghij").text == "abcdefghij"


def test_images_and_errors_stay(pass_through):
    long = ToolResult(content=({"type": "text", "text": "abc"}, IMAGE, {"type": "text", "text": "def"}), is_error=True)
    done = pass_through(Truncate(max_chars=5), answer=long)
    assert done.result.content == ({"type": "text", "text": "abc\nd\n[… 2 characters left out …]"}, IMAGE)
    assert done.result.is_error


def test_only_the_named_tools_are_cut(pass_through):
    assert pass_through(Truncate(max_chars=1, tools=["other"]), answer="abc").text == "abc"


def test_limits_are_checked():
    with pytest.raises(ValueError, match="set max_chars, max_tokens or both"):
        Truncate()
    with pytest.raises(ValueError, match="'max_tokens': expected at least 1"):
        Truncate(max_tokens=0)
