"""Every client of the catalogue plays its scenarios; what is stored is what the engine sampled, token by token."""

import asyncio
import importlib
import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import attrs
import pytest
from tests.conformance.responses import TEMPLATE
from tests.matrix.exactness import assert_one_chain, compare
from tests.matrix.policy import SpellingEngine, write_model
from typer.testing import CliRunner

from agentrl_core.api.stores import RunRow
from agentrl_core.chat import Chat
from agentrl_core.cli.verify import verify
from agentrl_core.config.sampling_sections import GatewayConfig, SamplingConfig
from agentrl_core.gateway import Gateway
from agentrl_core.stores.sqlite import SQLiteStore
from agentrl_core.types import FinishReason, Outcome, Record

from .catalogue import CLIENTS
from .environments import node_of, place_of

FOLDER = os.environ.get("AGENTRL_CLIENTS", "")
pytestmark = pytest.mark.skipif(not FOLDER, reason="nox -s clients installs the clients and sets AGENTRL_CLIENTS")

QUESTION = "What is one plus two, my friend?"
TEXT = "It is three é 晴."
_TOOL_NAMES = re.compile(r'"name": "(\w+)"')
_LIMIT_S = 120
PLAYS = [
    pytest.param(client, api, scenario, id=f"{client.name}-{api}-{scenario}")
    for client in CLIENTS
    for api, played in client.plays.items()
    for scenario in played
]


class Policy(SpellingEngine):
    """Answers by what the prompt says, as agents also ask what nobody told them to."""

    def __init__(self, chat, model_dir):
        super().__init__(chat, model_dir)
        self.context_length = 2_000_000
        self.scenario = "text"
        self.call = None
        """Name and arguments of the tool to be called."""
        self.structured_tool: str | None = ""
        """Tool by which an agent asks for structured output; None: by the text; empty: by whatever it requires."""

    def _reply(self, request, index):
        prompt = self.chat.decode(request.prompt_ids)
        self.replies = [self._text(prompt, request.sampling.grammar)]
        return self._spell_next(request.prompt_ids, index)

    def _text(self, prompt, grammar):
        if QUESTION not in prompt:
            return "ok"
        if self.scenario == "structured":
            return self._structured(prompt, grammar)
        if self.scenario in ("tools", "group") and f'"name": "{self.call[0]}"' in prompt:
            answered = prompt.rpartition("</tool_call>")[2].count("<|im_start|>") > 1 and "<tool_call>" in prompt
            return TEXT if answered else _spelt(*self.call)
        return TEXT

    def _structured(self, prompt, grammar):
        if self.structured_tool is None or (grammar is not None and grammar.kind == "json_schema"):
            return '{"value": 3}'
        names = _TOOL_NAMES.findall(prompt)
        if grammar is None and self.structured_tool not in names:
            return "ok"
        if "<tool_call>" in prompt:
            return TEXT
        return _spelt(self.structured_tool if self.structured_tool in names else names[0], {"value": 3})


def _spelt(name, arguments):
    return f'<tool_call>\n{{"name": "{name}", "arguments": {json.dumps(arguments)}}}\n</tool_call>'


@attrs.define
class Stage:
    """A run with one gateway, in whose store all clients are."""

    directory: Path
    chat: Chat
    engine: Policy
    store: SQLiteStore
    gateway: Gateway
    records: int = 0

    async def open(self):
        (group,) = await self.store.add_evaluation("run", "train", ["t"], version=0, claimable=False)
        record = Record(id=f"r{self.records}", run_id="run", task_id="t", group_id=group, sample_index=0)
        self.records += 1
        await self.store.add_record(record)
        return record, await self.gateway.open_session(record, seed_key=(self.records,))

    async def close(self, record, session):
        await self.gateway.close_session(session)
        await self.store.finish_record(attrs.evolve(record, outcome=Outcome.SCORED, reward=1.0))
        return await self.store.episode(record.id)


@pytest.fixture(scope="module")
def stage(tmp_path_factory):
    directory = write_model(tmp_path_factory.mktemp("model"))
    (directory / "chat_template.jinja").write_text(TEMPLATE, encoding="utf-8")
    chat = Chat.from_directory(directory)
    engine, store = Policy(chat, directory), SQLiteStore(path=directory / "agentrl.db")
    gateway = Gateway(
        engine=engine,
        chat=chat,
        store=store,
        run_id="run",
        sampling=SamplingConfig(max_tokens=2000),
        config=GatewayConfig(hosted_tools="drop"),
        seed=7,
    )
    gateway.start()
    asyncio.run(store.create_run(RunRow(id="run", created_at=0.0, status="running", config={}, components={})))
    yield Stage(directory, chat, engine, store, gateway)
    gateway.close()
    engine.close()
    asyncio.run(store.close())


def run(client, api, scenario, session, folder):
    """Run the client's program and return what it shows, with the module of a command-line agent."""
    place = place_of(Path(FOLDER), client)
    node = Path(node_of(Path(FOLDER)))
    path = f"{node.parent}{os.pathsep}{os.environ['PATH']}" if node.is_absolute() else os.environ["PATH"]
    environ = {"PATH": path, "HOME": str(folder), "LANG": "C.UTF-8"}
    agent = None
    if "." not in client.program:
        agent = importlib.import_module(f"tests.clients.{client.program}")
        line, more = agent.command(place, folder, scenario, QUESTION, session.base_url, session.api_key)
        environ |= more
    else:
        # Node looks for packages from where the program lies.
        program = shutil.copy(Path(__file__).parent / "programs" / client.program, place)
        line = [str(node) if client.language == "node" else str(place / "bin" / "python"), str(program)]
        environ |= {"API": api, "SCENARIO": scenario, "QUESTION": QUESTION}
        environ |= {"BASE_URL": f"{session.base_url}/v1", "API_KEY": session.api_key}
    ended = subprocess.run(
        line,
        check=False,
        capture_output=True,
        text=True,
        timeout=_LIMIT_S,
        cwd=folder,
        env=environ,
        stdin=subprocess.DEVNULL,
    )
    assert ended.returncode == 0, ended.stderr[-3000:] + ended.stdout[-3000:]
    return agent.shown(ended.stdout, folder) if agent else json.loads(ended.stdout.strip().splitlines()[-1])


@pytest.mark.parametrize(("client", "api", "scenario"), PLAYS)
def test_a_client_plays_a_scenario(stage, client, api, scenario, tmp_path):
    engine = stage.engine
    agent = None if "." in client.program else importlib.import_module(f"tests.clients.{client.program}")
    # All that instructor does is structured output, also when it streams.
    engine.scenario = "structured" if client.name == "instructor" else scenario
    engine.call = (agent.GROUPED if scenario == "group" else agent.TOOL) if agent else ("add", {"a": 1, "b": 2})
    engine.structured_tool = agent.STRUCTURED_TOOL if agent else ""
    first = len(engine.log)
    record, session = asyncio.run(stage.open())
    shown = run(client, api, scenario, session, tmp_path)
    episode = asyncio.run(stage.close(record, session))

    if engine.scenario == "structured":
        assert shown["object"] == {"value": 3}
    else:
        assert shown["text"] == TEXT
    assert scenario != "stream" or shown.get("pieces", 2) > 1
    log = [call for call in engine.log[first:] if call.finish_reason is not FinishReason.ABORT]
    assert compare(episode, log).share == 1.0
    if scenario in ("tools", "group"):
        played = [item for item in episode.interactions if item.output.get("tool_calls") or item.parent]
        assert len(played) == 2
        assert played[1].parent == played[0].id
        (result,) = [str(message["content"]) for message in played[1].messages if message["role"] == "tool"]
        assert "sum=3" in result if scenario == "tools" else "unsupported call" not in result
        assert_one_chain([call for call in log if call.request.request_id in {item.id for item in played}])


def test_the_trace_of_all_of_them_verifies(stage):
    """`agentrl trace verify` of the run: needs the plays above."""
    if not stage.records:
        pytest.skip("nothing was played")
    import typer

    app = typer.Typer()
    app.command()(verify)
    result = CliRunner().invoke(app, [str(stage.directory / "agentrl.db")])
    print(result.output)  # noqa: T201 - the session's result
    assert result.exit_code == 0, result.output
