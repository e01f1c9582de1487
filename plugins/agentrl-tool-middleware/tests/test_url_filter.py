import json

import pytest

from agentrl_core.api.tools import ToolResult
from agentrl_tool_middleware.url_filter import UrlFilter, hosts_in, hosts_of

FILTER = UrlFilter(blocked=["huggingface.co", "answers"])


@pytest.mark.parametrize(
    "address",
    [
        "https://huggingface.co/datasets", "huggingface.co", "HTTPS://HuggingFace.co:443/x", "https://huggingface.co.",
        "https://user@huggingface.co/", "http://good.org@huggingface.co", "https:\\\\huggingface.co/x",
        "//huggingface.co",
        "https://datasets-server.huggingface.co/rows", "https://r.jina.ai/https://huggingface.co/x", "my-answers.org",
        "https%3A%2F%2Fhuggingface.co", "https://\uff48uggingface.co", " https:/huggingface.co",
    ],
)  # fmt: skip
def test_an_address_of_a_blocked_host_is_refused(pass_through, address):
    done = pass_through(FILTER, {"url": address})
    assert done.sent == []
    assert done.result.is_error
    assert "may not be visited" in done.text


@pytest.mark.parametrize(
    "address", ["https://nothuggingface.co", "https://a.org/huggingface.co", "b.org?q=x", "", 3, None]
)
def test_another_address_is_visited(pass_through, address):
    assert pass_through(FILTER, {"url": address}).sent[0].arguments == {"url": address}


def test_of_several_addresses_the_allowed_ones_are_visited(pass_through):
    done = pass_through(FILTER, {"url": ["https://huggingface.co/x", "https://a.org"], "purpose": "p"})
    assert done.sent[0].arguments == {"url": ["https://a.org"], "purpose": "p"}


def test_entries_of_a_result_that_name_a_blocked_host_are_removed(pass_through):
    entries = [{"title": "a", "link": "https://a.org"}, {"title": "h", "link": "https://huggingface.co/x"}]
    found = {"query": "q", "organic": entries, "note": "see https://huggingface.co"}
    answer = ToolResult(content=({"type": "text", "text": json.dumps(found)},), structured=found)
    done = pass_through(FILTER, answer=answer)
    expected = {"query": "q", "organic": entries[:1], "note": "(filtered out)"}
    assert json.loads(done.text) == expected
    assert done.result.structured == expected


def test_paragraphs_of_a_text_that_name_a_blocked_host_are_removed(pass_through):
    text = "1. A\nhttps://a.org\n\n2. H\nhttps://huggingface.co/x\nmore\n\n3. B"
    assert pass_through(FILTER, answer=text).text == "1. A\nhttps://a.org\n\n3. B"
    assert pass_through(UrlFilter(blocked=["huggingface.co"], results=False), answer=text).text == text
    assert pass_through(UrlFilter(blocked=["huggingface.co"], tools=["x"]), answer=text).text == text
    assert pass_through(FILTER, answer="{broken https://huggingface.co").text == "(filtered out)"


def test_hosts():
    assert hosts_in("see (https://a.org/x), http://B.org:8080?q and http://[::1]") == ["a.org", "b.org"]
    assert hosts_of("a.org/b") == ["a.org"]
    assert hosts_of("https://a.org") == ["a.org"]
