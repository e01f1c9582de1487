"""Stop strings are found where the last token completes them, and nowhere else."""

import shutil

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrl_core.engines.embedded import EmbeddedEngine
from agentrl_core.engines.stopping import find_stop_string, load_decode
from agentrl_core.errors import EngineError
from agentrl_testing.policy import write_tokenizer


@pytest.fixture(scope="module")
def decode(tmp_path_factory):
    directory = tmp_path_factory.mktemp("tokenizer")
    write_tokenizer(directory)
    return load_decode(directory)


@pytest.fixture(scope="module")
def encode(tmp_path_factory):
    from tokenizers import Tokenizer

    directory = tmp_path_factory.mktemp("tokenizer")
    write_tokenizer(directory)
    tokenizer = Tokenizer.from_file(str(directory / "tokenizer.json"))
    return lambda text: tokenizer.encode(text, add_special_tokens=False).ids


def first_stop(text, stop, encode, decode, prompt=""):
    """Feed `text` token by token; return the first match and the text up to it."""
    ids = encode(prompt)
    start = len(ids)
    for token in encode(text):
        ids.append(token)
        found = find_stop_string(stop, ids, start, decode)
        if found is not None:
            return found, decode(ids[start:])
    return None


def test_the_first_completed_string_counts(encode, decode):
    assert first_stop("abcdef", ["ef", "bcd"], encode, decode) == ("bcd", "abcd")


def test_characters_of_several_bytes_are_found(encode, decode):
    assert first_stop("aé😀b", ["😀"], encode, decode) == ("😀", "aé😀")


def test_special_tokens_count_as_their_text(encode, decode):
    assert first_stop("ab<|im_end|>c", ["<|im_end|>"], encode, decode) == ("<|im_end|>", "ab<|im_end|>")


def test_the_prompt_does_not_take_part(encode, decode):
    assert first_stop("b", ["ab"], encode, decode, prompt="a") is None


@given(text=st.text("aé😀b", max_size=30), stop=st.text("aé😀b", min_size=1, max_size=4))
def test_a_match_is_the_first_in_the_whole_text(text, stop, encode, decode):
    found = first_stop(text, [stop], encode, decode)
    if stop not in text:
        assert found is None
    else:
        assert found == (stop, text[: text.index(stop) + len(stop)])


def test_a_directory_without_tokenizer_is_named(tmp_path):
    with pytest.raises(EngineError, match=r"tokenizer\.json: stop strings need"):
        load_decode(tmp_path)


def test_a_broken_tokenizer_is_named(tmp_path):
    (tmp_path / "tokenizer.json").write_text("{", encoding="utf-8")
    with pytest.raises(EngineError, match=r"tokenizer\.json: the tokenizer cannot be read"):
        load_decode(tmp_path)


def test_an_engine_stops_on_strings_after_its_directory_is_gone(policies, tmp_path):
    directory = shutil.copytree(policies("qwen3"), tmp_path / "step-0")
    engine = EmbeddedEngine(model_dir=directory)
    expected = load_decode(directory)([5, 6, 7])
    shutil.rmtree(directory)
    assert engine._decode([5, 6, 7]) == expected
