"""The scripted engine passes the suite of real ones, says what it was given, and logs it."""

import asyncio
import hashlib
import subprocess
import sys

import pytest
from tokenizers import Tokenizer

from agentrl_core.api.weights import DirectoryWeights
from agentrl_core.engines.scripted import ScriptedEngine
from agentrl_core.errors import EngineError
from agentrl_core.types import FinishReason
from agentrl_testing.engines import EngineSuite, ask, collect, request, run
from agentrl_testing.policy import write_tokenizer


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    path = tmp_path_factory.mktemp("tokenizer")
    write_tokenizer(path)
    return path


def babble(prompt_ids, _call_index):
    """Five hundred ids that depend on the prompt only."""
    seed = repr(prompt_ids).encode()
    return [
        byte + 7
        for index in range(500)
        for byte in hashlib.blake2b(seed + bytes([index % 251]), digest_size=1).digest()
    ]


class TestSuite(EngineSuite):
    @pytest.fixture
    def engine_factory(self, directory):
        return lambda: ScriptedEngine(replies=babble, model_dir=directory, context_length=1024, vocab_size=263)

    @pytest.fixture
    def vocab_size(self):
        return 263

    @pytest.fixture
    def new_weights(self, directory):
        return DirectoryWeights(directory)

    @pytest.fixture
    def reference_logprobs(self):
        return None

    @pytest.fixture
    def grammars(self):
        return "ignored"

    @pytest.fixture
    def decode(self, directory):
        tokenizer = Tokenizer.from_file(str(directory / "tokenizer.json"))
        return lambda ids: tokenizer.decode(list(ids), skip_special_tokens=False)


@pytest.fixture
def start():
    """`start(replies, …)`: a running engine."""
    engines = []

    def make(replies, **options):
        engines.append(ScriptedEngine(replies=replies, **options))
        engines[-1].start()
        return engines[-1]

    yield make
    for engine in engines:
        engine.close()


def test_replies_are_said_in_order(start):
    engine = start([(5, 6), (7, 8, 9)])
    first, second = run(_ask_twice(engine))
    assert (first.ids, second.ids) == ((5, 6), (7, 8, 9))
    assert first.last.finish_reason is FinishReason.STOP


async def _ask_twice(engine):
    return await ask(engine, [1]), await ask(engine, [1, 2])


def test_a_reply_may_be_computed_from_prompt_and_call_index(start):
    engine = start(lambda prompt_ids, call_index: (len(prompt_ids), call_index))
    first, second = run(_ask_twice(engine))
    assert (first.ids, second.ids) == ((1, 0), (2, 1))


def test_a_call_beyond_the_replies_is_an_error(start):
    engine = start([(5, 6)])
    with pytest.raises(EngineError, match="call 2, but 1 replies given"):
        run(_ask_twice(engine))


def test_the_log_has_what_was_asked_and_said(start):
    engine = start([(5, 6), (7, 8, 9)])
    results = run(_ask_twice(engine))
    assert [entry.request.prompt_ids for entry in engine.log] == [(1,), (1, 2)]
    assert [(entry.ids, entry.logprobs, entry.versions) for entry in engine.log] == [
        (result.ids, result.logprobs, result.versions) for result in results
    ]


def test_the_log_is_written_before_the_last_chunk_arrives(start):
    engine = start([(5, 6)])

    async def first_chunk():
        chunks = engine.generate(request([1]))
        await anext(chunks)
        assert len(engine.log) == 1
        await chunks.aclose()

    run(first_chunk())
    assert len(engine.log) == 1


def test_what_a_consumer_left_is_logged_as_aborted(start):
    engine = start([range(100)])

    async def leave():
        chunks = engine.generate(request([1], stream=True, max_tokens=100))
        await anext(chunks)
        await chunks.aclose()

    run(leave())
    assert engine.log[0].finish_reason is FinishReason.ABORT
    assert 0 < len(engine.log[0].ids) < 100


def test_logprobs_depend_on_prompt_output_and_version_only(start):
    replies = [(5, 6, 5)] * 4
    engine = start(replies)

    async def ask_all():
        first, same, other = await ask(engine, [1]), await ask(engine, [1]), await ask(engine, [2])
        await engine.load_weights(1, DirectoryWeights(None))
        return first, same, other, await ask(engine, [1])

    first, same, other, updated = run(ask_all())
    assert first.logprobs == same.logprobs
    assert len({first.logprobs, other.logprobs, updated.logprobs}) == 3
    assert len(set(first.logprobs)) == 3


def test_weights_are_kept_for_the_test(start):
    engine = start([])
    source = DirectoryWeights(None)
    asyncio.run(engine.load_weights(1, source))
    assert engine.weights == [source]


def test_stop_strings_without_a_tokenizer_are_refused(start):
    engine = start([(5, 6)])
    with pytest.raises(EngineError, match="give model_dir"):
        run(collect(engine.generate(request([1], stop=("x",)))))


def test_it_needs_no_torch():
    program = "import sys, agentrl_core.engines.scripted; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
