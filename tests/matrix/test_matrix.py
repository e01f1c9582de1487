"""A real conversation of every client in every case: the engine's log says what was sampled, the client what it saw."""

import asyncio
import itertools
import json

import anthropic
import attrs
import openai
import pytest

from agentrl_core.types import FinishReason

from .clients import CLIENTS

DOORS = ("socket", "in process")
CUTS = (("up", 0), ("up", 200), ("down", 0), ("down", 250))
"""Where a connection breaks: before the request, in its middle, before the reply, in its middle."""


@attrs.frozen
class Said:
    """What the policy says in one reply."""

    text: str
    calls: tuple = ()

    @property
    def spelt(self):
        calls = [
            f'<tool_call>\n{{"name": "{name}", "arguments": {json.dumps(arguments)}}}\n</tool_call>'
            for name, arguments in self.calls
        ]
        return "\n".join(([self.text] if self.text else []) + calls)


def cells(*cases):
    return pytest.mark.parametrize(
        ("client", "case", "door"),
        [
            pytest.param(client, case, door, id=f"{client.name}-{case}-{door}")
            for client, case, door in itertools.product(CLIENTS, cases, DOORS)
            if door == "socket" or not (client.is_sync or case == "retry")
        ],
    )


def check_possible(client, case):
    if reason := client.cannot.get(case):
        pytest.skip(reason)


def answer(client, text, *, tools):
    return Said("", ((client.final_call, {"answer": text}),)) if tools and client.final_call else Said(text)


def assert_shown(client, shown, said, call, interaction, *, stream):
    """Check that a client's objects show what was said, and no other number than the engine's."""
    assert shown.text == said.text
    assert [(name, arguments) for name, arguments, _ in shown.calls] == list(said.calls)
    ids = [call_id for *_, call_id in shown.calls]
    assert ids == [made["id"] for made in interaction.output.get("tool_calls", ())]
    assert len(set(ids)) == len(ids)
    expected = {
        "finish": client.finish[bool(said.calls)],
        "usage": (len(call.request.prompt_ids), len(call.ids)),
        "id": interaction.id,
    }
    hidden = client.hides | (client.hides_streamed if stream else frozenset())
    for field, value in expected.items():
        assert getattr(shown, field) == (None if field in hidden else value), field
    assert not stream or shown.pieces > 1 or len(said.text) < 2


def converse(client, stage, turns, *, tools=False, stream=False, **options):
    """Play a dialogue of `(question, replies)` and check all that the client shows of it, and all that is stored."""
    stage.engine.replies = [said.spelt for _, replies in turns for said in replies]

    async def scenario(conversation):
        return [shown for question, _ in turns for shown in await conversation.say(question, stream=stream)]

    every = stage.play(client, scenario, tools=tools, **options)
    said = [one for _, replies in turns for one in replies]
    forks = client.forks if tools else ""
    if forks:
        stage.note["forks"] = forks
    episode = stage.judge(calls=len(said), one_chain=not forks)
    assert len(every) == len(said)
    for shown, one, call, interaction in zip(every, said, stage.log, episode.interactions, strict=True):
        assert_shown(client, shown, one, call, interaction, stream=stream)
        text = one.spelt
        assert not text or tuple(stage.engine.chat.encode(text)) != call.ids[:-1]  # not what a tokenizer would choose


@cells("plain", "stream")
def test_a_dialogue(client, case, door, stage):
    check_possible(client, case)
    turns = [
        ("one and two", [Said("three é 晴")]),
        ("what about it", [Said("what is the sum")]),
        ("then", [Said("hello")]),
    ]
    converse(client, stage, turns, stream=case == "stream")


@cells("tools", "stream+tools")
def test_a_dialogue_with_tools(client, case, door, stage):
    check_possible(client, case)
    turns = [
        ("one and two", [Said("the sum", (("add", {"b": 2, "a": 1}),)), answer(client, "three", tools=True)]),
        ("and two and two", [Said("", (("add", {"a": 2, "b": 2}),)), answer(client, "hello there", tools=True)]),
    ]
    converse(client, stage, turns, tools=True, stream=case == "stream+tools")


@cells("parallel calls")
def test_a_dialogue_with_parallel_calls(client, case, door, stage):
    check_possible(client, case)
    both = (("add", {"a": 1, "b": 2}), ("add", {"a": 3, "b": 4}))
    turns = [
        ("both sums", [Said("the sums", both), answer(client, "three and seven", tools=True)]),
        ("again", [Said("", both), Said("", both[:1]), answer(client, "the same", tools=True)]),
    ]
    converse(client, stage, turns, tools=True)


@cells("retry")
def test_a_client_that_asks_again_gets_a_reply_of_its_own(client, case, door, stage, monkeypatch):
    check_possible(client, case)
    for sdk in (openai, anthropic):
        monkeypatch.setattr(sdk._base_client, "MAX_RETRY_DELAY", 0.01)
    texts = ["one", "two", "three", "then", "hello"]

    async def scenario(conversation):
        stage.engine.replies = texts[:1]
        shown = await conversation.say("hello")
        for text, (direction, after) in zip(texts[1:], CUTS, strict=True):
            stage.engine.replies = [text] * 3
            stage.proxy.cut(direction, after)
            shown += await conversation.say(f"{direction} {after}")
        return shown

    shown = stage.play(client, scenario, retries=2, proxied=True)
    assert stage.proxy.cuts == len(CUTS)
    assert [one.text for one in shown] == texts
    # a reply that was sent and lost on its way is generated again: it might have been another request's
    lost = len(stage.log) - len(texts)
    assert 0 <= lost <= sum(direction == "down" for direction, _ in CUTS)
    episode = stage.judge(calls=len(stage.log), one_chain=not lost)
    if "id" not in client.hides:
        ids = [one.id for one in shown]
        assert len(set(ids)) == len(ids)
        assert [item.id for item in episode.interactions if item.id in ids] == ids


@cells("disconnect")
def test_a_client_that_goes_away_ends_its_generation(client, case, door, stage):
    check_possible(client, case)
    engine = stage.engine
    engine.replies = ["three", "a story without an end", "another story without an end", "hello"]

    async def cut_off(conversation):
        engine.stall_at = 5
        asking = asyncio.ensure_future(conversation.say("what about it"))
        await engine.has_stalled()
        if client.is_sync:
            stage.proxy.cut_all()
        else:
            asking.cancel()
        (outcome,) = await asyncio.gather(asking, return_exceptions=True)
        assert isinstance(outcome, BaseException)
        await engine.has_ended(2)

    async def scenario(conversation):
        shown = [*await conversation.say("one and two")]
        await cut_off(conversation)
        engine.stall_at = 5
        await conversation.leave("what about it")
        await engine.has_ended(3)
        return [*shown, *await conversation.say("and then")]

    shown = stage.play(client, scenario, proxied=client.is_sync)
    assert [one.text for one in shown] == ["three", "hello"]
    reasons = [call.finish_reason for call in stage.log]
    assert reasons == [FinishReason.STOP, FinishReason.ABORT, FinishReason.ABORT, FinishReason.STOP]
    assert len(stage.log[1].ids) == 5
    assert len(stage.log[2].ids) <= 5
    stage.judge(calls=2)
