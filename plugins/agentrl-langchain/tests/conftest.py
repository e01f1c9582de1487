"""A whole run without learning: the real gateway, store and runner, and a policy that says what a test tells it."""

import asyncio
import itertools
import json

import pytest
from langchain_openai import ChatOpenAI
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

from agentrl_core.api.stores import RunRow
from agentrl_core.chat import Chat
from agentrl_core.config.component import Component
from agentrl_core.config.sampling_sections import GatewayConfig, RolloutConfig, SamplingConfig
from agentrl_core.engines.scripted import ScriptedEngine
from agentrl_core.gateway import Gateway
from agentrl_core.models.tiny import MARKERS, PAD, TEMPLATE, TURN_END, TURN_START
from agentrl_core.plugins.manager import load_registry
from agentrl_core.rollout.runner import Runner
from agentrl_core.rollout.workflows import resolve_workflow
from agentrl_core.scorers.call import normalize_scorer
from agentrl_core.stores.sqlite import SQLiteStore
from agentrl_core.types import Task


@pytest.fixture(scope="session")
def policy(tmp_path_factory):
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
    return Chat.from_directory(directory), directory


class World:
    """One run on one engine; `play` runs an episode per task, all at once, and returns them in order."""

    def __init__(self, chat, model_dir, directory):
        self.chat = chat
        self.mind = None
        self.engine = ScriptedEngine(replies=self._reply, model_dir=model_dir)
        self.store = SQLiteStore(path=directory / "agentrl.db")
        self.registry = load_registry()
        self.gateway = Gateway(
            engine=self.engine, chat=chat, store=self.store, run_id="run",
            sampling=SamplingConfig(max_tokens=500), config=GatewayConfig(), seed=7,
        )  # fmt: skip
        self.engine.start()
        self.gateway.start()
        self.numbers = itertools.count()
        created = RunRow(id="run", created_at=0.0, status="running", config={}, components={})
        asyncio.run(self.store.create_run(created))

    def says(self, *replies):
        """Let the policy say these, one after the other, in every conversation."""
        self.mind = lambda prompt: replies[prompt.count(f"{TURN_START}assistant\n") - 1]

    def hangs(self):
        """Let the policy think for ever."""
        self.says("never said")
        asyncio.run(self.engine.pause())

    @property
    def prompts(self):
        """What the policy was asked, rendered."""
        return [self.chat.decode(entry.request.prompt_ids) for entry in self.engine.log]

    def _reply(self, prompt_ids, _):
        text = self.mind(self.chat.decode(prompt_ids))
        if isinstance(text, Exception):
            raise text
        # ids that no tokenizer would choose: what is trained must be these, not a re-encoding
        return [token for character in text for token in self.chat.encode(character)] + self.chat.encode(TURN_END)

    def play(self, agent, *rows, scorer=lambda request: 1.0, timeout_s=30.0, is_eval=False, options=None, tools=None):
        workflow = Component(agent, options or {}) if isinstance(agent, str) else agent
        resolved = resolve_workflow(workflow, registry=self.registry, base_dir=None)
        normalized = normalize_scorer(scorer, name="test")
        runner = Runner(
            source=resolved, gateway=self.gateway, store=self.store, scorer_for=lambda task: normalized,
            config=RolloutConfig(timeout_s=timeout_s), run_id="run", grace_s=5.0, tools=tools,
        )  # fmt: skip

        async def one(row):
            number = next(self.numbers)
            task = Task(id=f"t{number}", data={"id": f"t{number}", **row})
            await self.store.add_tasks("run", [task])
            (group,) = await self.store.add_evaluation("run", "train", [task.id], version=0, claimable=False)
            return await runner.run_episode(task, group_id=group, sample_index=0, seed_key=(number,), is_eval=is_eval)

        async def all_at_once():
            return await asyncio.gather(*(one(row) for row in rows))

        return asyncio.run(all_at_once())

    def close(self):
        self.gateway.close()
        self.engine.close()
        asyncio.run(self.store.close())


@pytest.fixture
def world(policy, tmp_path):
    made = World(*policy, tmp_path)
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
