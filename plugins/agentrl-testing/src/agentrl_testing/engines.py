"""Conformance suite of engines: token ids and logprobs are exactly those of the weights of the stated version."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import math
import random
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypeVar

import attrs
import pytest

from agentrl_core.api.engines import Engine
from agentrl_core.api.kept_tokens import ids_of, joined
from agentrl_core.errors import EngineError, UnservableError
from agentrl_core.types import Chunk, FinishReason, GenerateRequest, Grammar, KeptTokens, Sampling
from agentrl_testing.base import ConformanceSuite

if TYPE_CHECKING:
    from agentrl_core.api.weights import WeightSource

EngineFactory: TypeAlias = Callable[[], Engine]
Reference: TypeAlias = Callable[[int, Sequence[int], Sequence[int], float], Sequence[float]]
"""Function `(version, prompt_ids, output_ids, temperature) -> logprobs` that does not use the engine."""

T = TypeVar("T")

DEADLINE_S = 120.0
"""Time limit of a test, after which it counts as hung."""

TOLERANCE = 1e-4
"""Largest absolute difference of logprobs, in nats."""

LONG = 400
"""Number of tokens of a request that takes a while."""

REPORT = Grammar(
    kind="json_schema",
    value=json.dumps(
        {
            "type": "object",
            "properties": {
                "mood": {"enum": ["calm", "curious"]},
                "counts": {
                    "type": "array",
                    "items": {"type": "integer", "minimum": 0, "maximum": 99},
                    "minItems": 1,
                    "maxItems": 2,
                },
            },
            "required": ["mood", "counts"],
            "additionalProperties": False,
        }
    ),
)
"""Grammar whose longest output, including whitespace, fits into the smallest allowed context."""

_request_ids = itertools.count()


@attrs.frozen(kw_only=True)
class Result:
    """A whole generation, with a policy version for every token."""

    prompt_ids: tuple[int, ...]
    ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    versions: tuple[int, ...]
    top_logprobs: tuple[tuple[tuple[int, float], ...], ...] = ()
    kept: KeptTokens = ()
    last: Chunk


def run(work: Coroutine[Any, Any, T]) -> T:
    """Run a test's coroutine; raise TimeoutError after `DEADLINE_S`."""
    return asyncio.run(asyncio.wait_for(work, DEADLINE_S))


def request(prompt_ids: Sequence[int], *, stream: bool = False, **sampling: Any) -> GenerateRequest:
    """Return a request with a new id."""
    return GenerateRequest(
        request_id=f"r{next(_request_ids)}",
        prompt_ids=tuple(prompt_ids),
        sampling=Sampling(**{"max_tokens": 16} | sampling),
        stream=stream,
    )


def endless(prompt_ids: Sequence[int]) -> GenerateRequest:
    """Return a streamed request that fills the context, so that it is still running while a test acts."""
    return request(prompt_ids, stream=True, max_tokens=None)


async def collect(chunks: AsyncIterator[Chunk], prompt_ids: Sequence[int] = (), before: Sequence[Chunk] = ()) -> Result:
    """Read a generation to its end and check that only its last chunk has a finish reason.

    `before` are the chunks that the caller has read already.
    """
    seen = [*before, *[chunk async for chunk in chunks]]
    assert seen, "a generation has at least its last chunk"
    assert all(chunk.finish_reason is None for chunk in seen[:-1])
    assert seen[-1].finish_reason is not None
    assert all(len(chunk.ids) == len(chunk.logprobs) for chunk in seen)
    return Result(
        prompt_ids=tuple(prompt_ids),
        ids=tuple(token for chunk in seen for token in chunk.ids),
        logprobs=tuple(logprob for chunk in seen for logprob in chunk.logprobs),
        versions=tuple(chunk.version for chunk in seen for _ in chunk.ids),
        top_logprobs=tuple(likeliest for chunk in seen for likeliest in chunk.top_logprobs),
        kept=joined([chunk.kept for chunk in seen], [len(chunk.ids) for chunk in seen]),
        last=seen[-1],
    )


async def ask(engine: Engine, prompt_ids: Sequence[int], **sampling: Any) -> Result:
    """Send one request and return its generation."""
    return await collect(engine.generate(request(prompt_ids, **sampling)), prompt_ids)


class EngineSuite(ConformanceSuite):
    """Conformance tests of engines; define the following fixtures.

    - `engine_factory` returns a new engine that is not started and has a context of at least 512 tokens. If it samples
      in another process, filling the context must take many seconds: some tests abort or pause requests in between.
    - `vocab_size`: prompts are made of the token ids below it.
    - `new_weights`: a weight source that differs from the engine's initial weights.
    - `reference_logprobs`: a `Reference` for the initial weights (version 0) and `new_weights` (version 1), or None.
    - `decode` converts token ids to the text in which stop strings are searched.
    - `grammars` (optional): "held" if the engine holds outputs to a grammar, "refused" if it raises
      `UnservableError`, "ignored" if it ignores grammars (which only a fake may).
    - `masks` (optional): "returned" if the engine returns sampling masks, "refused" if it raises `UnservableError` for
      requests that need them.
    - `stop_token_ids` (optional): token ids that end a request with a grammar, for engines that need them.
    """

    @pytest.fixture
    def masks(self) -> Literal["returned", "refused"]:
        """Return the default: the engine returns sampling masks."""
        return "returned"

    @pytest.fixture
    def grammars(self) -> Literal["held", "refused", "ignored"]:
        """Return the default: the engine holds outputs to grammars."""
        return "held"

    @pytest.fixture
    def stop_token_ids(self) -> tuple[int, ...]:
        """Return the default: the engine ends an output that is complete by its grammar."""
        return ()

    @pytest.fixture
    def engine(self, engine_factory: EngineFactory) -> Iterator[Engine]:
        """Yield a running engine."""
        engine = engine_factory()
        engine.start()
        yield engine
        engine.close()

    @pytest.fixture
    def prompts(self, vocab_size: int) -> list[list[int]]:
        """Return 32 prompts in eight groups of four equal ones, with a shared prefix of 40 tokens.

        Equal prompts and shared prefixes make the engine use its prefix cache.
        """
        source = random.Random(7)  # noqa: S311 (data)
        common = [source.randrange(vocab_size) for _ in range(40)]
        own = [[source.randrange(vocab_size) for _ in range(20 + 5 * group)] for group in range(8)]
        return [common + own[index // 4] for index in range(32)]

    def test_a_generation_ends_at_max_tokens(self, engine: Engine, prompts: list[list[int]]) -> None:
        result = run(ask(engine, prompts[0], max_tokens=5))
        assert len(result.ids) == len(result.logprobs) == 5
        assert all(math.isfinite(logprob) and logprob <= 0 for logprob in result.logprobs)
        assert result.versions == (engine.version,) * 5
        assert result.last.finish_reason is FinishReason.LENGTH

    def test_streaming_gives_the_same_in_more_chunks(self, engine: Engine, prompts: list[list[int]]) -> None:
        async def both() -> None:
            whole = await ask(engine, prompts[0], seed=3)
            chunks = [chunk async for chunk in engine.generate(request(prompts[0], seed=3, stream=True))]
            assert len(chunks) > 1
            assert tuple(token for chunk in chunks for token in chunk.ids) == whole.ids

        run(both())

    def test_logprobs_are_those_of_a_full_forward(
        self,
        engine: Engine,
        prompts: list[list[int]],
        new_weights: WeightSource,
        reference_logprobs: Reference | None,
    ) -> None:
        """Tested with multi-turn prompts in 32 concurrent sessions, before and after a change of weights."""
        if reference_logprobs is None:
            pytest.skip("no reference_logprobs given")

        async def both_versions() -> list[Result]:
            before = await _all_converse(engine, prompts)
            await engine.load_weights(1, new_weights)
            return before + await _all_converse(engine, prompts)

        results = run(both_versions())
        assert {version for result in results for version in result.versions} == {0, 1}
        for result in results:
            expected = reference_logprobs(result.versions[0], result.prompt_ids, result.ids, 0.8)
            assert result.logprobs == pytest.approx(expected, abs=TOLERANCE)

    def test_results_do_not_depend_on_the_batch(self, engine: Engine, prompts: list[list[int]]) -> None:
        async def together_and_alone() -> None:
            together = await _all_converse(engine, prompts)
            # Three turns per conversation, hence the slice below.
            for index in (0, 5, 31):
                alone = await _converse(engine, prompts, index)
                assert [turn.ids for turn in alone] == [turn.ids for turn in together[3 * index : 3 * index + 3]]

        run(together_and_alone())

    def test_temperature_zero_needs_no_seed(
        self, engine: Engine, prompts: list[list[int]], reference_logprobs: Reference | None
    ) -> None:
        async def twice() -> tuple[Result, Result]:
            return await ask(engine, prompts[0], temperature=0.0, seed=1), await ask(
                engine, prompts[0], temperature=0.0
            )

        first, second = run(twice())
        assert first.ids == second.ids
        if reference_logprobs is not None:
            # Greedy sampling reports the logprobs of the unscaled distribution, as at temperature 1.
            expected = reference_logprobs(0, prompts[0], first.ids, 1.0)
            assert first.logprobs == pytest.approx(expected, abs=TOLERANCE)

    def test_a_stop_id_ends_and_is_kept(self, engine: Engine, prompts: list[list[int]]) -> None:
        async def with_and_without() -> None:
            free = await ask(engine, prompts[0], seed=1)
            stop = free.ids[-1]
            stopped = await ask(engine, prompts[0], seed=1, stop_token_ids=(stop,))
            assert stopped.ids == free.ids[: free.ids.index(stop) + 1]
            assert stopped.last.finish_reason is FinishReason.STOP
            assert stopped.last.stop_string is None

        run(with_and_without())

    def test_a_stop_string_may_span_tokens(
        self, engine: Engine, prompts: list[list[int]], decode: Callable[[Sequence[int]], str]
    ) -> None:
        async def with_and_without() -> None:
            free = await ask(engine, prompts[0], seed=1, max_tokens=100)
            stop, count = _spanning(free.ids, decode)
            stopped = await ask(engine, prompts[0], seed=1, max_tokens=100, stop=("never said", stop))
            assert stopped.ids == free.ids[:count]
            assert stopped.last.finish_reason is FinishReason.STOP
            assert stopped.last.stop_string == stop

        run(with_and_without())

    def test_top_logprobs_are_the_likeliest_of_the_same_distribution(
        self, engine: Engine, prompts: list[list[int]], reference_logprobs: Reference | None
    ) -> None:
        async def with_and_without(temperature: float) -> Result:
            asked = request(prompts[0], temperature=temperature, seed=4)
            free = await collect(engine.generate(asked))
            assert free.top_logprobs == ()
            told = await collect(engine.generate(attrs.evolve(asked, top_logprobs=5)), prompts[0])
            assert told.ids == free.ids
            return told

        for temperature in (0.8, 0.0):
            result = run(with_and_without(temperature))
            assert [len(likeliest) for likeliest in result.top_logprobs] == [5] * len(result.ids)
            for index, (token, logprob) in enumerate(zip(result.ids, result.logprobs, strict=True)):
                likeliest = dict(result.top_logprobs[index])
                assert len(likeliest) == 5
                assert list(likeliest.values()) == sorted(likeliest.values(), reverse=True)
                lowest = min(likeliest.values())
                assert likeliest.get(token, logprob) == pytest.approx(logprob, abs=TOLERANCE)
                assert token in likeliest or logprob <= lowest + TOLERANCE
                # A reference call per candidate is slow, so only the first three tokens are compared.
                if reference_logprobs is not None and index < 3:
                    before = result.ids[:index]
                    scale = temperature or 1.0
                    expected = [reference_logprobs(0, prompts[0], (*before, other), scale)[-1] for other in likeliest]
                    assert list(likeliest.values()) == pytest.approx(expected, abs=TOLERANCE)

    @pytest.mark.parametrize("stream", [False, True])
    def test_sampling_masks_have_the_tokens_that_top_p_and_top_k_left(
        self,
        engine: Engine,
        prompts: list[list[int]],
        reference_logprobs: Reference | None,
        masks: str,
        *,
        stream: bool,
    ) -> None:
        """The logprobs are renormalised over them, and so are those of the likeliest tokens."""

        async def ask_for_masks() -> Result:
            asked = request(prompts[0], stream=stream, temperature=0.8, top_p=0.9, top_k=12, seed=4)
            asked = attrs.evolve(asked, return_kept=True, top_logprobs=5)
            return await collect(engine.generate(asked), prompts[0])

        if masks == "refused":
            with pytest.raises(UnservableError, match="top_p and top_k"):
                run(ask_for_masks())
            return
        result = run(ask_for_masks())
        kept = [ids_of(mask) for mask in result.kept]
        assert len(kept) == len(result.ids) == 16
        assert all(token in left and len(left) <= 12 for token, left in zip(result.ids, kept, strict=True))
        assert any(len(left) > 1 for left in kept)
        for told, left in zip(result.top_logprobs, kept, strict=True):
            assert {token for token, _ in told} <= set(left)
        if reference_logprobs is None:
            return
        for index, left in enumerate(kept[:3]):
            before = result.ids[:index]
            scores = {token: reference_logprobs(0, prompts[0], (*before, token), 0.8)[-1] for token in left}
            total = math.log(math.fsum(math.exp(score) for score in scores.values()))
            assert result.logprobs[index] == pytest.approx(scores[result.ids[index]] - total, abs=TOLERANCE)
            for token, logprob in result.top_logprobs[index]:
                assert logprob == pytest.approx(scores[token] - total, abs=TOLERANCE)

    def test_more_top_logprobs_than_any_api_allows_are_refused(self, engine: Engine, prompts: list[list[int]]) -> None:
        with pytest.raises(UnservableError, match="top_logprobs"):
            run(collect(engine.generate(attrs.evolve(request(prompts[0]), top_logprobs=21))))

    def test_an_output_holds_to_its_grammar(
        self,
        engine: Engine,
        prompts: list[list[int]],
        decode: Callable[[Sequence[int]], str],
        reference_logprobs: Reference | None,
        grammars: str,
        stop_token_ids: tuple[int, ...],
    ) -> None:
        """The logprobs are still those of the distribution without the grammar."""
        if grammars == "ignored":
            pytest.skip("the engine ignores grammars")

        async def ask_all() -> list[Result]:
            asked = {"grammar": REPORT, "stop_token_ids": stop_token_ids, "temperature": 0.8, "max_tokens": 400}
            talks = [ask(engine, prompts[4 * group], seed=group, **asked) for group in range(4)]
            return list(await asyncio.gather(*talks))

        if grammars == "refused":
            with pytest.raises(UnservableError, match="grammar"):
                run(ask_all())
            return
        for result in run(ask_all()):
            assert result.last.finish_reason is FinishReason.STOP
            # A stop id is kept at the end of the output but is no part of its text.
            said = result.ids[:-1] if stop_token_ids else result.ids
            found = json.loads(decode(said))
            assert set(found) == {"mood", "counts"}
            assert found["mood"] in ("calm", "curious")
            assert all(type(count) is int and 0 <= count <= 99 for count in found["counts"])
            assert 1 <= len(found["counts"]) <= 2
            if reference_logprobs is not None:
                expected = reference_logprobs(0, result.prompt_ids, result.ids, 0.8)
                assert result.logprobs == pytest.approx(expected, abs=TOLERANCE)

    def test_a_grammar_that_is_none_is_refused(self, engine: Engine, prompts: list[list[int]], grammars: str) -> None:
        if grammars == "ignored":
            pytest.skip("the engine ignores grammars")
        with pytest.raises(UnservableError, match="request r"):
            run(ask(engine, prompts[0], grammar=Grammar(kind="regex", value="(")))

    def test_the_context_limits_prompt_and_output(self, engine: Engine, vocab_size: int) -> None:
        prompt = [index % vocab_size for index in range(engine.context_length - 3)]
        result = run(ask(engine, prompt, max_tokens=None))
        assert len(result.ids) == 3
        assert result.last.finish_reason is FinishReason.LENGTH

    def test_impossible_requests_are_refused(self, engine: Engine, vocab_size: int) -> None:
        too_long = [index % vocab_size for index in range(engine.context_length)]
        impossible: list[tuple[list[int], dict[str, float]]] = [
            (too_long, {}),
            ([], {}),
            ([1], {"temperature": -1.0}),
            ([1], {"temperature": math.nan}),
            ([1], {"top_p": 0.0}),
            ([1], {"max_tokens": 0}),
        ]
        for prompt, sampling in impossible:
            with pytest.raises(UnservableError, match="request r"):
                run(ask(engine, prompt, **sampling))

    def test_token_ids_that_no_model_has_are_refused(self, engine: Engine) -> None:
        with pytest.raises(EngineError, match="request r"):
            run(ask(engine, [-1]))

    def test_abort_ends_a_request_with_what_it_has(self, engine: Engine, prompts: list[list[int]]) -> None:
        async def abort_after_first() -> list[Chunk]:
            asked = endless(prompts[0])
            chunks: list[Chunk] = []
            async for chunk in engine.generate(asked):
                if not chunks:
                    await engine.abort(asked.request_id)
                chunks.append(chunk)
            # Requests that have ended or never existed are ignored.
            await engine.abort(asked.request_id)
            await engine.abort("never asked")
            return chunks

        chunks = run(abort_after_first())
        assert chunks[-1].finish_reason is FinishReason.ABORT
        assert 0 < sum(len(chunk.ids) for chunk in chunks) < engine.context_length - len(prompts[0])

    def test_a_consumer_that_leaves_aborts(self, engine: Engine, prompts: list[list[int]]) -> None:
        """The request id is free again at once, and the engine serves other requests."""

        async def leave() -> Result:
            asked = endless(prompts[0])
            chunks = engine.generate(asked)
            async with contextlib.aclosing(chunks):  # type: ignore[type-var] # an async generator behind its protocol
                await anext(chunks)
            # The same id once more, this time with a consumer that is cancelled.
            task = asyncio.create_task(collect(engine.generate(asked)))
            await ask(engine, prompts[1], max_tokens=1)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            return await collect(engine.generate(attrs.evolve(asked, sampling=Sampling(max_tokens=2))))

        assert len(run(leave()).ids) == 2

    def test_nothing_is_sampled_during_a_pause(
        self, engine: Engine, prompts: list[list[int]], new_weights: WeightSource
    ) -> None:
        """A request that arrives during a pause is sampled after it, with the weights loaded during the pause."""

        async def pause() -> Result:
            await engine.pause()
            task = asyncio.create_task(ask(engine, prompts[0]))
            await asyncio.sleep(0)
            await engine.load_weights(1, new_weights)
            assert not task.done()
            await engine.resume()
            return await task

        assert set(run(pause()).versions) == {1}

    def test_a_paused_request_can_be_aborted(self, engine: Engine, prompts: list[list[int]]) -> None:
        async def pause() -> Result:
            asked = endless(prompts[0])
            chunks = engine.generate(asked)
            await anext(chunks)
            await engine.pause()
            await engine.abort(asked.request_id)
            rest = await collect(chunks)
            await engine.resume()
            return rest

        assert run(pause()).last.finish_reason is FinishReason.ABORT

    def test_running_requests_go_on_with_new_weights(
        self,
        engine: Engine,
        prompts: list[list[int]],
        new_weights: WeightSource,
        reference_logprobs: Reference | None,
    ) -> None:
        """Versions rise within a generation, `max_tokens` holds, and later logprobs are those of the new weights.

        Four requests are long, and may end before the pause on a busy machine; four are endless, and are aborted after
        some tokens of the new weights.
        """

        async def abort_later(asked: GenerateRequest, stream: AsyncIterator[Chunk], first: Chunk) -> Result:
            seen = [first]
            while sum(len(chunk.ids) for chunk in seen if chunk.version == 1) < 16:
                seen.append(await anext(stream))
            await engine.abort(asked.request_id)
            return await collect(stream, asked.prompt_ids, seen)

        async def update_in_flight() -> tuple[list[Result], list[Result]]:
            requests = [request(prompt, stream=True, max_tokens=LONG) for prompt in prompts[:4]]
            requests += [endless(prompt) for prompt in prompts[4:8]]
            streams = [engine.generate(asked) for asked in requests]
            first = await asyncio.gather(*[anext(stream) for stream in streams])
            await engine.pause()
            await engine.load_weights(1, new_weights)
            await engine.resume()
            begun = list(zip(requests, streams, first, strict=True))
            long = [collect(stream, asked.prompt_ids, [chunk]) for asked, stream, chunk in begun[:4]]
            aborted = [abort_later(*one) for one in begun[4:]]
            results = await asyncio.gather(*long, *aborted)
            return results[:4], results[4:]

        long, aborted = run(update_in_flight())
        assert [len(result.ids) for result in long] == [LONG] * 4
        assert all(set(result.versions) == {0, 1} for result in aborted)
        for result in [*long, *aborted]:
            assert list(result.versions) == sorted(result.versions)
            if reference_logprobs is not None and 1 in result.versions:
                change = result.versions.index(1)
                old = reference_logprobs(0, result.prompt_ids, result.ids, 1.0)
                new = reference_logprobs(1, result.prompt_ids, result.ids, 1.0)
                expected = [*old[:change], *new[change:]]
                assert result.logprobs == pytest.approx(expected, abs=TOLERANCE)

    def test_versions_never_go_back(self, engine: Engine, new_weights: WeightSource) -> None:
        async def twice() -> None:
            await engine.load_weights(3, new_weights)
            with pytest.raises(EngineError, match="3"):
                await engine.load_weights(3, new_weights)

        run(twice())
        assert engine.version == 3

    def test_several_event_loops_may_ask_at_once(self, engine: Engine, prompts: list[list[int]]) -> None:
        alone = run(ask(engine, prompts[0], seed=1))
        answers: list[Result] = []
        threads = [
            threading.Thread(target=lambda: answers.append(run(ask(engine, prompts[0], seed=1)))) for _ in range(4)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert [answer.ids for answer in answers] == [alone.ids] * 4

    def test_running_ids_are_unique(self, engine: Engine, prompts: list[list[int]]) -> None:
        async def twice() -> None:
            asked = endless(prompts[0])
            chunks = engine.generate(asked)
            await anext(chunks)
            with pytest.raises(EngineError, match=asked.request_id):
                await collect(engine.generate(asked))
            await engine.abort(asked.request_id)
            await collect(chunks)

        run(twice())

    def test_close_fails_what_runs_and_what_comes(self, engine: Engine, prompts: list[list[int]]) -> None:
        async def close() -> None:
            chunks = engine.generate(endless(prompts[0]))
            await anext(chunks)
            await engine.pause()
            waiting = asyncio.create_task(ask(engine, prompts[1]))
            await asyncio.sleep(0)
            # The second call must do nothing.
            engine.close()
            engine.close()
            for pending in (collect(chunks), waiting, ask(engine, prompts[0])):
                with pytest.raises(EngineError, match="closed"):
                    await pending

        run(close())

    def test_an_engine_serves_only_after_its_start(self, engine_factory: EngineFactory) -> None:
        engine = engine_factory()
        with pytest.raises(EngineError, match="not been started"):
            run(ask(engine, [1, 2, 3]))
        engine.close()

    def test_cpu_time_only_grows(self, engine: Engine, prompts: list[list[int]]) -> None:
        before = engine.cpu_seconds
        run(ask(engine, prompts[0]))
        assert 0 <= before <= engine.cpu_seconds


async def _converse(engine: Engine, prompts: Sequence[Sequence[int]], index: int) -> list[Result]:
    """Make three calls; each prompt is the previous prompt and output, followed by three new tokens."""
    results: list[Result] = []
    ids = list(prompts[index])
    for turn in range(3):
        sampling = {"temperature": 0.8, "max_tokens": 8 + index % 5, "seed": 100 * index + turn}
        results.append(await ask(engine, ids, **sampling))
        ids += [*results[-1].ids, *prompts[index][:3]]
    return results


async def _all_converse(engine: Engine, prompts: Sequence[Sequence[int]]) -> list[Result]:
    """Run all conversations concurrently; return three results of each, in order."""
    talks = [_converse(engine, prompts, index) for index in range(len(prompts))]
    return [result for results in await asyncio.gather(*talks) for result in results]


def _spanning(ids: Sequence[int], decode: Callable[[Sequence[int]], str]) -> tuple[str, int]:
    """Return text that begins in one token and ends in the next, and the number of tokens up to its end."""
    for count in range(2, len(ids) + 1):
        first, second = decode(ids[count - 2 : count - 1]), decode(ids[count - 1 : count])
        text = first[-1:] + second[:1]
        plain = len(text) == 2 and text.isascii() and text.isprintable()
        if plain and text in decode(ids[:count]) and text not in decode(ids[: count - 1]):
            return text, count
    raise AssertionError(f"no two neighbouring tokens with plain text in {decode(ids)!r}; take another prompt")
