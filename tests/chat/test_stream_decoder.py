"""What a stream shows of growing ids is always how the text of all ids begins."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from agentrl_core.chat.tokenizer import TextTokenizer

CORPUS = ["hello world, this is a test of things: one two\n", "caf\u00e9 \u6674 \U0001f600"] * 3


def byte_level_tokenizer():
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    tokenizer.train_from_iterator(
        CORPUS, trainers.BpeTrainer(vocab_size=300, initial_alphabet=alphabet, show_progress=False)
    )
    return tokenizer


def byte_fallback_tokenizer():
    """Build a tokenizer as SentencePiece models have them: marks for blanks, bytes for unknown characters."""
    tokenizer = Tokenizer(models.BPE(byte_fallback=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")])
    byte_tokens = [f"<0x{byte:02X}>" for byte in range(256)]
    tokenizer.train_from_iterator(
        CORPUS[:1] * 3, trainers.BpeTrainer(vocab_size=400, show_progress=False, special_tokens=["<s>", *byte_tokens])
    )
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return tokenizer


def word_piece_tokenizer():
    tokenizer = byte_fallback_tokenizer()
    tokenizer.decoder = decoders.WordPiece(cleanup=True)  # it takes blanks back that stood before a full stop
    return tokenizer


TOKENIZERS = {
    "bytes": TextTokenizer(byte_level_tokenizer()),
    "fallback": TextTokenizer(byte_fallback_tokenizer()),
    "word pieces": TextTokenizer(word_piece_tokenizer()),
}


@st.composite
def growing_ids(draw, tokenizer):
    """Pieces of ids: any, and those of real text, which have characters of several tokens."""
    some_id = st.integers(0, tokenizer.vocab_size - 1).map(lambda token: [token])
    some_text = st.text(max_size=4).map(tokenizer.encode)
    ids = [token for piece in draw(st.lists(some_id | some_text, max_size=20)) for token in piece]
    size = draw(st.integers(1, 3))
    return [ids[at : at + size] for at in range(0, len(ids), size)]


@pytest.mark.parametrize("name", TOKENIZERS)
@given(st.data())
def test_the_pieces_and_the_rest_are_the_text(name, data):
    tokenizer = TOKENIZERS[name]
    pieces = data.draw(growing_ids(tokenizer))
    text = tokenizer.decode([token for piece in pieces for token in piece])
    decoder = tokenizer.decoder()
    shown = "".join([decoder.feed(piece) for piece in pieces])
    assert text.startswith(shown)
    assert shown + decoder.end() == text


@pytest.mark.parametrize(("name", "text"), [("bytes", "caf\u00e9 \u6674 ok"), ("fallback", "hello \u6674 world")])
def test_text_comes_as_soon_as_its_characters_are_whole(name, text):
    tokenizer = TOKENIZERS[name]
    ids = tokenizer.encode(text)
    decoder = tokenizer.decoder()
    shown = [decoder.feed([token]) for token in ids]
    assert "".join(shown) == text
    assert len([piece for piece in shown if piece]) > 3


def test_a_run_of_bytes_waits_for_its_end():
    tokenizer = TOKENIZERS["fallback"]
    byte_ids = {byte: tokenizer.id_of(f"<0x{byte:02X}>") for byte in (*"\u6674".encode(), 0xFF)}
    decoder = tokenizer.decoder()
    assert decoder.feed([byte_ids[byte] for byte in "\u6674".encode()]) == ""
    assert decoder.feed([byte_ids[0xFF]]) == ""
    assert decoder.feed([tokenizer.id_of("h")]) == "\ufffd" * 4 + "h"
