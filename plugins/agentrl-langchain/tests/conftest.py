"""A whole run without learning: the real gateway, store and runner, and an engine that says what a test tells it."""

import asyncio
import itertools
import json
import threading

import attrs
import pytest
from langchain_openai import ChatOpenAI
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

from agentrl_core.chat import Chat
from agentrl_core.config.schema import Component, GatewayConfig, RolloutConfig, SamplingConfig
from agentrl_core.gateway import Gateway
from agentrl_core.models.tiny import MARKERS, PAD, TEMPLATE, TURN_END, TURN_START
from agentrl_core.plugins import load_registry
from agentrl_core.rollout.runner import Runner
from agentrl_core.rollout.workflows import resolve_workflow
from agentrl_core.scorers.call import normalize_scorer
from agentrl_core.stores.base import RunRow
from agentrl_core.stores.sqlite import SQLiteStore
from agentrl_core.types import Chunk, FinishReason, Task


@pytest.fixture(scope="session")
def chat(tmp_path_factory):
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=340, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator([TEMPLATE] * 2, trainer)
    tokenizer.add_special_tokens([AddedToken(text, special=True) for text in (PAD, TURN_START, TURN_END)])
    tokenizer.add_tokens([AddedToken(text, special=False) for text in MARKERS])
    directory = tmp_path_factory.mktemp("model")
    tokenizer.save(str(directory / "tokenizer.json"))
    (directory / "chat_template.jinja").write_text(TEMPLATE)
    (directory / "tokenizer_config.json").write_text(json.dumps({"eos_token": TURN_END}))
    return Chat.from_directory(directory)


@attrs.frozen
class Sampled:
    """The engine's own log of one call."""

    request: object
    prompt: str
    ids: tuple


class TalkingEngine:
    """Says what `mind(prompt text)` thinks, in ids that no tokenizer would choose, and keeps a log of its own.

    What is trained must be these ids, not a re-encoding. An exception that `mind` returns is raised; None is
    thought for ever, until the generation is aborted or cancelled.
    """

    version = 0
    context_length = 4096

    def __init__(self, chat):
        self.chat = chat
        self.mind = None
        self.log = []
        self.given_up = threading.Event()
        self._aborts = {}

    async def abort(self, request_id):
        loop, aborted = self._aborts[request_id]
        loop.call_soon_threadsafe(aborted.set)

    async def generate(self, request):
        prompt = self.chat.decode(request.prompt_ids)
        text = self.mind(prompt)
        if isinstance(text, Exception):
            raise text
        if text is None:
            await self._think_for_ever(request.request_id)
            yield Chunk(ids=(), logprobs=(), version=0, finish_reason=FinishReason.ABORT)
            return
        ids = [token for character in text for token in self.chat.encode(character)]
        ids = (*ids, *self.chat.encode(TURN_END))
        finish = FinishReason.STOP if len(ids) <= request.sampling.max_tokens else FinishReason.LENGTH
        ids = ids[: request.sampling.max_tokens]
        self.log.append(Sampled(request, prompt, ids))
        for token in ids:
            yield Chunk(ids=(token,), logprobs=(-0.5,), version=0)
        yield Chunk(ids=(), logprobs=(), version=0, finish_reason=finish, cached_tokens=3)

    async def _think_for_ever(self, request_id):
        aborted = asyncio.Event()
        self._aborts[request_id] = asyncio.get_running_loop(), aborted
        try:
            await aborted.wait()
        finally:
            self.given_up.set()


class World:
    """One run on one engine; `play` runs an episode per task, all at once, and returns them in order."""

    def __init__(self, chat, directory):
        self.engine = TalkingEngine(chat)
        self.store = SQLiteStore(path=directory / "agentrl.db")
        self.registry = load_registry()
        self.gateway = Gateway(
            engine=self.engine, chat=chat, store=self.store, run_id="run",
            sampling=SamplingConfig(max_tokens=500), config=GatewayConfig(), seed=7,
        )  # fmt: skip
        self.gateway.start()
        self.numbers = itertools.count()
        created = RunRow(id="run", created_at=0.0, status="running", config={}, components={})
        asyncio.run(self.store.create_run(created))

    def says(self, *replies):
        """Let the policy say these, one after the other, in every conversation."""
        self.engine.mind = lambda prompt: replies[prompt.count(f"{TURN_START}assistant\n") - 1]

    def play(self, agent, *rows, scorer=lambda request: 1.0, timeout_s=30.0, is_eval=False, options=None):
        workflow = Component(agent, options or {}) if isinstance(agent, str) else agent
        resolved = resolve_workflow(workflow, registry=self.registry, base_dir=None)
        normalized = normalize_scorer(scorer, name="test")
        runner = Runner(
            run=resolved, gateway=self.gateway, store=self.store, scorer_for=lambda task: normalized,
            config=RolloutConfig(timeout_s=timeout_s), run_id="run", grace_s=5.0,
        )  # fmt: skip

        async def one(row):
            number = next(self.numbers)
            task = Task(id=f"t{number}", data={"id": f"t{number}", **row})
            await self.store.add_tasks("run", [task])
            await self.store.add_group("run", f"g{number}", task.id, index=number, size=1, version=0)
            return await runner.run_episode(
                task, group_id=f"g{number}", sample_index=0, seed_key=(number,), is_eval=is_eval
            )

        async def all_at_once():
            return await asyncio.gather(*(one(row) for row in rows))

        return asyncio.run(all_at_once())

    def close(self):
        self.gateway.close()
        asyncio.run(self.store.close())


@pytest.fixture
def world(chat, tmp_path):
    made = World(chat, tmp_path)
    yield made
    made.close()


@pytest.fixture
def model():
    """A model as users build it; nothing listens where it would call."""
    return ChatOpenAI(model="gpt-5-mini", api_key="sk-users-own", base_url="http://127.0.0.1:9/v1", max_retries=0)


@pytest.fixture
def ask():
    """A task's row that asks one thing."""
    return lambda text: {"messages": [{"role": "user", "content": text}]}


@pytest.fixture
def call():
    """A tool call as the policy writes it."""
    return lambda name, **arguments: f"<tool_call>{json.dumps({'name': name, 'arguments': arguments})}</tool_call>"
