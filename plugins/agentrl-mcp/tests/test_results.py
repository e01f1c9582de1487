"""Tools and results as servers write them, right and wrong."""

import base64

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrl_core.errors import InvalidResultError, ToolServerError
from agentrl_mcp.results import result_of, spec_of
from agentrl_mcp.rpc import RpcError, message_of, result_in

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=10,
)
KEYS = st.sampled_from(["type", "text", "data", "mimeType", "uri", "resource", "blob", "name", "content", "isError"])
VALUES = st.sampled_from(["text", "image", "audio", "resource", "resource_link", "AAAA", "image/png"]) | JSON
BLOCKS = st.dictionaries(KEYS, VALUES | st.dictionaries(KEYS, VALUES, max_size=4), max_size=5)


def error_of(function, *arguments, **options):
    """Return the message of the error with which a function refuses its input, empty if it does not."""
    try:
        function(*arguments, **options)
    except (InvalidResultError, ToolServerError, ValueError, RpcError) as error:
        return str(error)
    return ""


@given(answer=st.fixed_dictionaries({"content": st.lists(BLOCKS, max_size=3) | JSON}) | st.dictionaries(KEYS, JSON))
def test_any_answer_is_a_result_or_a_clear_error(answer):
    if error := error_of(result_of, answer, tool="t"):
        assert error.startswith("t: ")
        assert "\n" not in error
    else:
        result = result_of(answer, tool="t")
        assert all(part["type"] in {"text", "image_url"} for part in result.content)
        assert isinstance(result.text, str)


@given(data=st.binary(max_size=64) | JSON.map(repr).map(str.encode))
def test_any_bytes_are_a_message_or_refused(data):
    assert error_of(lambda: result_in(message_of(data)))


@given(tool=st.dictionaries(st.sampled_from(["name", "description", "inputSchema", "annotations", "title"]), JSON))
def test_any_tool_is_described_or_refused(tool):
    if error := error_of(spec_of, tool, server="s"):
        assert error.startswith("s: ")
    else:
        assert spec_of(tool, server="s").parameters["type"] == "object"


IMAGE = base64.b64encode(b"png").decode()


@pytest.mark.parametrize(
    ("block", "part"),
    [
        ({"type": "text", "text": "a"}, {"type": "text", "text": "a"}),
        (
            {"type": "image", "data": IMAGE, "mimeType": "image/png"},
            {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{IMAGE}"}},
        ),
        (
            {"type": "resource", "resource": {"uri": "file:///a", "text": "page", "mimeType": "text/plain"}},
            {"type": "text", "text": "page", "uri": "file:///a", "mimeType": "text/plain"},
        ),
        (
            {"type": "resource", "resource": {"uri": "file:///b", "blob": IMAGE, "mimeType": "image/png"}},
            {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{IMAGE}"}, "uri": "file:///b"},
        ),
        (
            {"type": "resource", "resource": {"uri": "file:///c", "blob": IMAGE}},
            {"type": "text", "text": "[application/octet-stream, 3 bytes: file:///c]", "uri": "file:///c"},
        ),
        (
            {"type": "resource_link", "uri": "file:///d", "name": "report", "description": "of May"},
            {"type": "text", "text": "[report of May](file:///d)", "uri": "file:///d"},
        ),
    ],
)
def test_each_kind_of_content_becomes_a_part(block, part):
    (found,) = result_of({"content": [block]}, tool="t").content
    # A part whose text only tells of the block keeps it, for those who serve it on.
    assert {key: found[key] for key in found if key != "mcp"} == part
    assert found.get("mcp", block) == block


def test_audio_that_is_large_is_not_kept():
    small, large = ({"type": "audio", "data": "AAAA" * n, "mimeType": "audio/wav"} for n in (1, 1 << 17))
    first, second = result_of({"content": [small, large]}, tool="t").content
    assert first["text"] == second["text"] == "[audio of type audio/wav, which cannot be shown]"
    assert (first["mcp"], "mcp" in second) == (small, False)


def test_structured_content_without_text_is_shown_as_json():
    result = result_of({"structuredContent": {"a": 1}}, tool="t")
    assert (result.text, result.structured) == ('{"a":1}', {"a": 1})


@pytest.mark.parametrize(
    ("block", "says"),
    [
        ({"type": "image", "data": "no base64!", "mimeType": "image/png"}, "data that is no base64"),
        ({"type": "video"}, "a content block of an unknown form"),
    ],
)
def test_content_that_is_wrong_is_named(block, says):
    with pytest.raises(InvalidResultError, match=says):
        result_of({"content": [block]}, tool="t")
