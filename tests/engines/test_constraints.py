"""Constrained outputs of untrained policies: they hold to their grammar, and to everything that holds without one."""

import asyncio
import itertools
import json
import re

import attrs
import pytest
import torch
from tokenizers import Tokenizer

from agentrl_core.api.parsing.call_rules import BLANKS
from agentrl_core.api.weights import DirectoryWeights
from agentrl_core.engines.constraints import KEPT_GRAMMARS, WHITESPACE, Grammars
from agentrl_core.errors import UnservableError
from agentrl_core.models import tiny
from agentrl_core.types import FinishReason, Grammar
from agentrl_testing.engines import ask, collect, request, run
from agentrl_testing.policy import toy_policy

PROMPT = list(range(10, 74))
IM_END = 2
"""In the tokenizer of `toy_policy`, where 3 is `<tool_call>`."""

ORDER = {
    "type": "object",
    "properties": {
        "kind": {"enum": ["buy", "sell"]},
        "count": {"type": "integer", "minimum": 1, "maximum": 500},
        "place": {
            "type": "object",
            "properties": {"row": {"type": "integer", "minimum": 0, "maximum": 9}, "open": {"type": "boolean"}},
            "required": ["row", "open"],
            "additionalProperties": False,
        },
        "tags": {"type": "array", "items": {"type": "string", "maxLength": 4}, "maxItems": 2},
    },
    "required": ["kind", "count", "place", "tags"],
    "additionalProperties": False,
}


def schema(value):
    return Grammar(kind="json_schema", value=json.dumps(value))


def lark(value):
    return Grammar(kind="lark", value=value)


def regex(value):
    return Grammar(kind="regex", value=value)


def test_a_tool_call_may_have_the_blanks_of_any_json():
    """The pattern is there twice, because neither of the two packages may import the other."""
    assert WHITESPACE == BLANKS


@pytest.mark.parametrize("implementation", ["loop", "generate"])
def test_an_untrained_policy_holds_to_a_schema(start, decode, load, policies, full_forward, implementation):
    engine = start(implementation=implementation)
    asked = {"grammar": schema(ORDER), "stop_token_ids": (IM_END,), "max_tokens": 700}

    async def ask_all():
        return await asyncio.gather(*[ask(engine, PROMPT, seed=seed, **asked) for seed in range(6)])

    results = run(ask_all())
    assert len({result.ids for result in results}) == 6
    for result in results:
        assert result.last.finish_reason is FinishReason.STOP
        assert result.ids[-1] == IM_END
        order = json.loads(decode(result.ids[:-1]))
        assert order.keys() == {"kind", "count", "place", "tags"}
        assert order["kind"] in ("buy", "sell")
        assert type(order["count"]) is int
        assert 1 <= order["count"] <= 500
        assert order["place"].keys() == {"row", "open"}
        assert order["place"]["row"] in range(10)
        assert order["place"]["open"] in (True, False)
        assert len(order["tags"]) <= 2
        assert all(isinstance(tag, str) and len(tag) <= 4 for tag in order["tags"])
        assert result.logprobs == pytest.approx(full_forward(load(policies("qwen3")), PROMPT, result.ids), abs=1e-4)


@pytest.mark.parametrize("sampling", [{"temperature": 0.0}, {"top_p": 0.5}, {"top_k": 3, "temperature": 1.5}])
def test_any_sampling_holds_to_a_regex(start, decode, sampling):
    engine = start()
    pattern = r"(ab|cd){3,6}x?-[0-9]{2,5}"
    for seed in range(4):
        result = run(
            ask(engine, PROMPT, seed=seed, grammar=regex(pattern), max_tokens=40, stop_token_ids=(IM_END,), **sampling)
        )
        assert result.ids[-1] == IM_END
        assert re.fullmatch(pattern, decode(result.ids[:-1]))


def test_a_json_object_has_what_it_likes(start, decode):
    engine = start()
    asked = {"grammar": Grammar(kind="json_object"), "stop_token_ids": (IM_END,), "max_tokens": 800}
    results = [run(ask(engine, PROMPT, seed=seed, **asked)) for seed in range(8)]
    whole = [result for result in results if result.last.finish_reason is FinishReason.STOP]
    assert whole
    for result in whole:
        assert isinstance(json.loads(decode(result.ids[:-1])), dict)


@pytest.mark.parametrize("markers_of", ["toy", "tiny"])
def test_a_lark_grammar_names_the_tokens_of_a_tool_call(start, policies, tmp_path, markers_of):
    if markers_of == "toy":
        directory = policies("qwen3")
    else:
        directory = tmp_path / "tiny"
        talk = {"messages": [{"role": "user", "content": "hello"}, {"role": "assistant", "content": "good day"}]}
        tiny.build(directory, seed=0, conversations=[talk], size="0.1M", vocab_size=400)
    tokenizer = Tokenizer.from_file(str(directory / "tokenizer.json"))
    opened, closed, end = map(tokenizer.token_to_id, ("<tool_call>", "</tool_call>", "<|im_end|>"))
    grammar = lark('start: <tool_call> %json {"type": "object", "properties": {"n": {"enum": [1, 22]}}, '
                   '"required": ["n"], "additionalProperties": false} </tool_call>')  # fmt: skip
    result = run(ask(start(model_dir=directory), PROMPT, grammar=grammar, stop_token_ids=(end,), max_tokens=120))
    assert result.ids[0] == opened
    assert result.ids[-2:] == (closed, end)
    assert json.loads(tokenizer.decode(list(result.ids[1:-2])))["n"] in (1, 22)


def test_text_that_looks_like_a_special_token_is_spelled_out(start, decode):
    result = run(ask(start(), PROMPT, grammar=regex("<tool_call>"), stop_token_ids=(IM_END,)))
    assert decode(result.ids[:-1]) == "<tool_call>"
    assert len(result.ids) == len("<tool_call>") + 1


def test_a_stop_token_is_sampled_only_where_the_output_is_complete(start, decode):
    """`b` is a stop token, so the regex leaves `a` alone, then ends with `b` at any complete place."""
    engine = start()
    tokens = {decode([token]): token for token in range(263)}
    for seed in range(8):
        result = run(ask(engine, PROMPT, seed=seed, grammar=regex("(a|b){3,5}"), stop_token_ids=(tokens["b"],)))
        assert re.fullmatch("a{3,5}b", decode(result.ids))


def test_a_grammar_may_demand_the_stop_token_by_name(start, decode):
    result = run(ask(start(), PROMPT, grammar=lark('start: "so" <|im_end|>'), stop_token_ids=(IM_END,)))
    assert decode(result.ids) == "so<|im_end|>"
    assert result.last.finish_reason is FinishReason.STOP


def test_without_stop_tokens_a_complete_output_ends_by_itself(start, decode):
    result = run(ask(start(), PROMPT, grammar=regex("[a-c]{4}")))
    assert re.fullmatch("[a-c]{4}", decode(result.ids))
    assert result.last.finish_reason is FinishReason.STOP


def test_max_tokens_cuts_as_ever(start, decode):
    result = run(ask(start(), PROMPT, grammar=regex("[a-c]{40}"), stop_token_ids=(IM_END,), max_tokens=7))
    assert re.fullmatch("[a-c]{7}", decode(result.ids))
    assert result.last.finish_reason is FinishReason.LENGTH


@pytest.mark.parametrize("implementation", ["loop", "generate"])
def test_a_mixed_batch_equals_each_alone(start, implementation):
    engine = start(implementation=implementation)
    grammars = [schema(ORDER), None, regex("[a-z ]{20,60}"), None, schema(ORDER), Grammar(kind="json_object"), None]
    grammars.append(lark("start: <tool_call> /[0-9]+/ </tool_call>"))
    asked = [
        {"grammar": grammar, "seed": seed, "stop_token_ids": (IM_END,), "max_tokens": 60, "temperature": seed % 3 / 2}
        for seed, grammar in enumerate(grammars)
    ]

    async def together():
        return await asyncio.gather(*[ask(engine, PROMPT, **sampling) for sampling in asked])

    alone = [run(ask(engine, PROMPT, **sampling)) for sampling in asked]
    assert [result.ids for result in run(together())] == [result.ids for result in alone]


@pytest.mark.parametrize("implementation", ["loop", "generate"])
def test_new_weights_in_flight_leave_the_grammar_where_it_was(start, policies, decode, implementation):
    engine = start(implementation=implementation)
    asked = request(PROMPT, stream=True, grammar=regex("(one|two|three){40}"), max_tokens=300)

    async def change_weights():
        chunks = engine.generate(asked)
        first = await anext(chunks)
        await engine.load_weights(1, DirectoryWeights(policies("qwen3", seed=1)))
        return await collect(chunks, PROMPT, [first])

    result = run(change_weights())
    assert set(result.versions) == {0, 1}
    assert re.fullmatch("(one|two|three){40}", decode(result.ids))


@pytest.mark.parametrize(
    ("grammar", "reason"),
    [
        (regex("a("), "unclosed group"),
        (regex("(?=a)b"), "look-ahead"),
        (lark("start: nobody"), "nobody"),
        (lark("start: <no_such_token>"), "no_such_token"),
        (schema({"type": "object", "not": {}}), "not"),
        (schema({"type": "array", "uniqueItems": True}), "uniqueItems"),
        (schema({"type": "text"}), "text"),
        (schema([]), "object"),
        (Grammar(kind="json_schema", value="{"), "column"),
        (Grammar(kind="json_schema"), "json_schema"),
    ],
)
def test_a_grammar_that_cannot_be_compiled_is_refused_with_its_reason(start, grammar, reason):
    engine = start()
    with pytest.raises(UnservableError, match=r"request r.*: the .* grammar cannot be enforced") as caught:
        run(ask(engine, PROMPT, grammar=grammar))
    assert reason in str(caught.value)
    assert len(run(ask(engine, PROMPT, max_tokens=3)).ids) == 3


@pytest.mark.parametrize("implementation", ["loop", "generate"])
def test_an_output_that_cannot_go_on_fails_its_request_only(start, decode, implementation):
    """The grammar demands `b`, which as a stop token may only come where the output is complete."""
    engine = start(implementation=implementation)
    stop = next(token for token in range(263) if decode([token]) == "b")
    beside = request(PROMPT, max_tokens=40, seed=5)

    async def both():
        other = asyncio.create_task(collect(engine.generate(beside)))
        with pytest.raises(
            UnservableError, match=r"request r.* cannot continue under its grammar: .* nothing but stop tokens"
        ):
            await ask(engine, PROMPT, grammar=regex("aab"), stop_token_ids=(stop,))
        return await other

    assert len(run(both()).ids) == 40


def test_grammars_need_a_tokenizer(start, tmp_path):
    directory = toy_policy(tmp_path)
    (directory / "tokenizer.json").unlink()
    with pytest.raises(UnservableError, match=r"tokenizer\.json"):
        run(ask(start(model_dir=directory), PROMPT, grammar=regex("a")))


def test_token_ids_that_stand_for_nothing_are_never_sampled(start, tmp_path):
    """The model's vocabulary is larger than the tokenizer's, as where it was padded."""
    directory = toy_policy(tmp_path, vocab_size=320)
    result = run(ask(start(model_dir=directory), PROMPT, grammar=regex("(.|\n){200}"), max_tokens=200))
    assert max(result.ids) < 263


def test_the_tokenizer_of_stop_strings_knows_no_added_token(start):
    engine = start()
    run(ask(engine, PROMPT, grammar=regex("ab"), stop=("b",)))
    assert engine._tokenizer.get_vocab_size() == 263


def test_compiled_grammars_are_kept_and_bounded(policies):
    grammars = Grammars(Tokenizer.from_file(str(policies("qwen3") / "tokenizer.json")), vocab_size=263)
    assert grammars.kept(regex("a0"), ()) is None
    for number in range(KEPT_GRAMMARS + 1):
        grammars.constraint(regex(f"a{number}"), ())
    assert grammars.kept(regex("a0"), ()) is None
    assert grammars.kept(regex("a1"), ()) is not None


def test_images_are_refused(start):
    asked = attrs.evolve(request(PROMPT), images=("data:image/png;base64,AA==",))
    with pytest.raises(UnservableError, match="takes text only"):
        run(collect(start().generate(asked)))


@pytest.mark.parametrize("implementation", ["loop", "generate"])
def test_top_logprobs_are_those_of_a_full_forward(start, load, policies, implementation):
    engine = start(implementation=implementation)

    async def three():
        counts = (3, 0, 20)
        asked = [attrs.evolve(request(PROMPT, seed=n, temperature=0.7), top_logprobs=n) for n in counts]
        return await asyncio.gather(*[collect(engine.generate(one), PROMPT) for one in asked])

    few, none, many = run(three())
    assert none.top_logprobs == ()
    for result, count in ((few, 3), (many, 20)):
        with torch.no_grad():
            logits = load(policies("qwen3"))(torch.tensor([[*PROMPT, *result.ids]])).logits[0, len(PROMPT) - 1 : -1]
        expected = torch.log_softmax(logits.double() / 0.7, -1).topk(count)
        told = torch.tensor(result.top_logprobs, dtype=torch.float64)
        assert told[:, :, 1] == pytest.approx(expected.values.numpy(), abs=1e-4)
        assert (told[:, :, 0] == expected.indices).double().mean() > 0.98  # near ties may change places


def test_top_logprobs_are_split_by_version_like_the_rest(start, load, policies):
    engine = start()
    asked = attrs.evolve(request(PROMPT, max_tokens=200), top_logprobs=2)
    other, step, steps = load(policies("qwen3", seed=1)), engine._batch.step, itertools.count(1)

    def then_load(host):
        step(host)
        if (
            next(steps) == 20
        ):  # on the engine's thread: on a busy machine, all tokens may be there before any other acts
            engine._load(1, other)

    engine._batch.step = then_load
    chunks = run(collect_chunks(engine.generate(asked)))
    assert [(chunk.version, len(chunk.ids)) for chunk in chunks] == [(0, 20), (1, 180)]
    assert [len(chunk.top_logprobs) for chunk in chunks] == [20, 180]


async def collect_chunks(chunks):
    return [chunk async for chunk in chunks]
