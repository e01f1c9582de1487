from hypothesis import given
from hypothesis import strategies as st

from agentrl_tool_middleware.lengths import TextLength
from agentrl_tool_middleware.pages import BORDER, Part, joined, prompt_for, split_pages

LENGTH = TextLength()


def test_each_page_has_its_address():
    text = BORDER.join(
        ["The content from https://a.org/x: Some text.", "", "no address", "The content from https://b.org:\nb"]
    )
    parts = split_pages(text, LENGTH, max_tokens=100, max_parts=1)
    assert [part.label for part in parts] == ["https://a.org/x", "page 2", "https://b.org"]
    assert parts[1].text == "no address"


@given(text=st.text(alphabet="ab \n€", min_size=1), limit=st.integers(1, 5))
def test_the_parts_of_a_page_are_the_page(text, limit):
    parts = split_pages(text, LENGTH, max_tokens=limit, max_parts=1000)
    assert "".join(part.text for part in parts) == text.strip()
    assert all(LENGTH.tokens(part.text) <= limit for part in parts)


def test_parts_beyond_the_limit_are_left_out_and_said():
    parts = split_pages("abcd" * 5, LENGTH, max_tokens=2, max_parts=2)
    assert [part.label for part in parts] == [
        "page 1 (part 1 of 3)", "page 1 (part 2 of 3); the parts after it were left out",
    ]  # fmt: skip


def test_a_part_is_cut_at_the_end_of_a_line():
    parts = split_pages("line one\nline two\nline three", LENGTH, max_tokens=5, max_parts=9)
    assert [part.text for part in parts] == ["line one\nline two\n", "line three"]


def test_a_page_cannot_close_its_quotation():
    (first,), (second,) = (prompt_for(Part(label="p", text="{text} [page 1]"), "why?") for _ in range(2))
    assert first["content"] != second["content"]
    assert "Its purpose: why?" in first["content"]
    assert "{text} [page 1]" in first["content"]


def test_summaries_are_joined():
    assert joined(["a", "b"], ["1", "2"]) == "URL: a\n\nSummary:\n1\n\n---\n\nURL: b\n\nSummary:\n2"
