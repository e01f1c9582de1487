"""Strings are found in a growing text, whatever they are and however the text comes."""

from hypothesis import given
from hypothesis import strategies as st

from agentrl_core.api.parsing.source import LongMarks, Marks

SHORT = st.text("ab", max_size=12)


def first_mark(text, marks):
    """Return the mark that ends a growing text first, and its beginning; of several ends the earliest beginning."""
    found = [(at, mark) for mark in marks if (at := text.find(mark)) >= 0]
    return min(found, key=lambda one: (one[0], len(one[1])), default=(len(text), ""))


@given(st.lists(SHORT.filter(bool), min_size=1, max_size=4), st.lists(SHORT, max_size=6))
def test_long_marks_find_what_marks_find(strings, pieces):
    one, other = Marks(strings), LongMarks(strings)
    text = "".join(pieces)
    at, mark = first_mark(text, strings)
    assert one.search(text, 0, final=True) == other.search(text, 0, final=True) == (mark, at)
    held, passed = "", ""
    for number, piece in enumerate(pieces, start=1):
        held += piece
        final = number == len(pieces)
        assert one.search(held, 0, final=final) == other.search(held, 0, final=final)
        mark, end = other.search(held, 0, final=final)
        passed += held[:end]
        held = held[end:]
        if mark:
            break
    assert passed == text[:at]
