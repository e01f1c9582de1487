"""A drift shows what differs: the texts where they do, else the tokens."""

import re

import pytest

from agentrl_core.chat.drift import drift_of
from agentrl_core.types import Episode, Interaction, Outcome, Record, Sampling

USER = {"role": "user", "content": "Say it."}


def interaction(seq, *, output_ids=(), **fields):
    return Interaction(
        id=f"c{seq}",
        record_id="r",
        seq=seq,
        output_ids=output_ids,
        logprobs=(0.0,) * len(output_ids),
        versions=((0, len(output_ids)),),
        messages=(USER,),
        sampling=Sampling(),
        **{"output": {"role": "assistant", "content": ""}} | fields,
    )


@pytest.fixture
def drift(chat):
    """`drift(said, ids)`: of a second call behind a reply that was sampled as `ids`, and sent back as `said`."""

    def find(said, ids):
        first = chat.prompt_ids([USER])
        ids = (*ids, chat.stop_token_ids[0])
        said = {"role": "assistant", "content": said}
        new = chat.continuation_ids([USER, said], [USER], (), ids[-1])
        calls = (
            interaction(0, prompt_ids=first, output_ids=ids, output=said),
            interaction(1, parent="c0", prompt_ids=new),
        )
        record = Record(id="r", run_id="run", task_id="t", group_id="g", sample_index=0, outcome=Outcome.SCORED)
        return str(drift_of(chat, Episode(record=record, interactions=calls), calls[-1]))

    return find


def one_by_one(chat, text):
    return [token for character in text for token in chat.encode(character)]


def shown(text):
    """The two things that a drift compares."""
    return re.search(r"sampled (.*), re-rendered (.*)$", text).groups()


def test_one_text_in_other_tokens_is_shown_by_its_tokens(chat, drift):
    told = drift("assistant", one_by_one(chat, "assistant"))
    ours, theirs = shown(told)
    assert "other tokens" in told
    assert ours != theirs
    assert ours.strip("[…]") in ", ".join(map(str, one_by_one(chat, "assistant"))) + ", "


@pytest.mark.parametrize("length", [4, 60, 900])
def test_a_difference_far_behind_the_first_other_token_is_shown(chat, drift, length):
    text = "assistant " * length
    ours, theirs = shown(drift(f"{text}yes", one_by_one(chat, f"{text}no!")))
    assert "no!" in ours
    assert "yes" in theirs
    assert max(len(ours), len(theirs)) < 100


def test_letters_that_look_alike_are_escaped(chat, drift):
    ours, theirs = shown(drift("caf\u00e9", one_by_one(chat, "cafe\u0301")))
    assert "\\u0301" in ours
    assert "\\xe9" in theirs
