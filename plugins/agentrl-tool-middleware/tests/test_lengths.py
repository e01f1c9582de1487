import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrl_testing.policy import write_tokenizer
from agentrl_tool_middleware.lengths import TextLength


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tokenizer")
    write_tokenizer(folder)  # one token per byte
    return TextLength.of(folder.name, folder.parent)


@given(text=st.text(), limit=st.integers(1, 20), tail=st.booleans())
def test_what_fits_is_within_the_limit_and_one_character_more_is_not(tokenizer, text, limit, tail):
    for length in (tokenizer, TextLength()):
        room = length.chars_within(text, limit, tail=tail)
        cut = text[len(text) - room :] if tail else text[:room]
        assert length.tokens(cut) <= limit
        if room < len(text):
            more = text[len(text) - room - 1 :] if tail else text[: room + 1]
            assert length.tokens(more) > limit


def test_a_wrong_path_is_named(tmp_path):
    with pytest.raises(ValueError, match=r"tokenizer: .*nowhere does not exist; expected a tokenizer.json"):
        TextLength.of("nowhere", tmp_path)
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(ValueError, match="cannot be read as a tokenizer"):
        TextLength.of("tokenizer.json", tmp_path)
