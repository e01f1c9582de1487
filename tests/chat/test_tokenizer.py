"""Our shorter ways through a tokenizer lead where the library's own lead."""

from hypothesis import given
from hypothesis import strategies as st

from agentrl_core.chat.tokenizer import TextTokenizer


@given(st.lists(st.integers(0, 400)))
def test_a_byte_level_tokenizer_decodes_as_the_library_does(library_tokenizer, ids):
    expected = library_tokenizer.decode(ids, skip_special_tokens=False)
    assert TextTokenizer(library_tokenizer).decode(ids) == expected


@given(st.text())
def test_a_byte_level_tokenizer_decodes_what_it_encoded(library_tokenizer, text):
    ids = library_tokenizer.encode(text, add_special_tokens=False).ids
    expected = library_tokenizer.decode(ids, skip_special_tokens=False)
    assert TextTokenizer(library_tokenizer).decode(ids) == expected == text
