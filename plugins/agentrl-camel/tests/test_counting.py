from hypothesis import given
from hypothesis import strategies as st

from agentrl_camel.counting import ByteEncoding


@given(st.text())
def test_a_text_comes_back_from_its_tokens(text):
    tokens = ByteEncoding().encode(text, disallowed_special=())
    assert ByteEncoding().decode(tokens) == text
    assert len(tokens) == -(-len(text.encode()) // 4)


def test_the_beginning_of_a_text_is_readable():
    encoding = ByteEncoding()
    assert encoding.decode(encoding.encode("some words")[:1]) == "some"
