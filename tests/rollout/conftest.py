"""Fixtures for rollout tests: a gateway and a store in memory, with a minimal runner and scheduler."""

import asyncio
from types import SimpleNamespace

import attrs
import pytest
from tests.gateway import conftest as parts
from tests.rollout.driving import DrivenScheduler, WatchedStore

from agentrl_core.chat import Chat
from agentrl_core.config.sampling_sections import RolloutConfig
from agentrl_core.http.borrowed_clients import close_borrowed
from agentrl_core.plugins.registry import Registry
from agentrl_core.rollout.runner import Runner
from agentrl_core.rollout.workflow_call import ResolvedWorkflow, WorkflowCall
from agentrl_core.rollout.workflows import resolve_workflow
from agentrl_core.scorers.call import normalize_scorer
from agentrl_core.types import Episode, Interaction, Task


class MemoryStore:
    """Keeps the records that it is given, by id."""

    def __init__(self):
        self.records = {}
        self.tool_calls = []

    async def add_record(self, record, *, member_id=""):
        await asyncio.sleep(0)
        self.records[record.id] = record

    async def finish_record(self, record):
        await asyncio.sleep(0)
        self.records[record.id] = record
        return True

    async def add_tool_call(self, run_id, call):
        await asyncio.sleep(0)
        self.tool_calls.append(call)

    async def episode(self, record_id):
        return Episode(record=self.records[record_id], interactions=())


@attrs.define(eq=False)
class Session:
    record: object
    seed_key: tuple
    sampling: object
    token: str
    base_url: str
    api_key: str
    interactions: list = attrs.field(factory=list)
    closed: bool = False
    refusal: str = ""


class MemoryGateway:
    """Sessions whose calls are made by `call`; `answer` is what the policy says next."""

    def __init__(self):
        self.sessions = []
        self.http_client = object()
        self.fatal = None
        self.answer = "<answer>4</answer>"

    async def open_session(self, record, *, seed_key, sampling=None):
        token = f"token-{len(self.sessions)}"
        session = Session(record, seed_key, sampling, token, f"http://gateway/s/{token}", f"sk-{token}")
        self.sessions.append(session)
        return session

    async def attend(self, session, work):
        return await work

    def fault_of(self, session):
        return None

    async def close_session(self, session):
        await asyncio.sleep(0)
        session.closed = True
        return tuple(session.interactions)

    async def call(self, base_url, *, trainable=True, tool_calls=(), upstream=""):
        session = next(item for item in self.sessions if item.base_url == base_url)
        assert not session.closed
        seq = len(session.interactions)
        output = {"role": "assistant", "content": self.answer, "tool_calls": list(tool_calls)}
        interaction = Interaction(
            id=f"chatcmpl-{self.sessions.index(session)}-{seq}",
            record_id=session.record.id,
            seq=seq,
            parent=session.interactions[-1].id if session.interactions else None,
            prompt_ids=(1, 2),
            output_ids=(3,),
            logprobs=(-0.5,),
            versions=((0, 1),),
            messages=({"role": "user", "content": f"turn {seq}"},),
            output=output,
            trainable=trainable,
            upstream=upstream,
        )
        session.interactions.append(interaction)
        return interaction


@pytest.fixture
def store():
    return MemoryStore()


@pytest.fixture
def gateway():
    return MemoryGateway()


@pytest.fixture
def make_task():
    def make(task_id="t0", **fields):
        return Task(id=task_id, data={"id": task_id, "messages": [{"role": "user", "content": "2 + 2?"}]}, **fields)

    return make


@pytest.fixture
def make_runner(store, gateway):
    def make(workflow, *, scorer_for=None, grace_s=5.0, tools=None, **config):
        def no_scorer(task):
            raise AssertionError(f"asked for the scorer of {task.id}")

        return Runner(
            source=ResolvedWorkflow("workflow", WorkflowCall(workflow, "workflow")),
            gateway=gateway,
            store=store,
            scorer_for=scorer_for or no_scorer,
            config=RolloutConfig(**config),
            run_id="run",
            clock=lambda: 7.0,
            grace_s=grace_s,
            tools=tools,
        )

    return make


@pytest.fixture
def run_one(make_runner, make_task):
    """Run one episode of a workflow to its end."""

    def run(workflow, *, task=None, is_eval=False, **options):
        runner = make_runner(workflow, **options)
        episode = runner.run_episode(task or make_task(), group_id="g", sample_index=3, seed_key=(1,), is_eval=is_eval)
        return asyncio.run(episode)

    return run


@pytest.fixture
def watched(tmp_path):
    """A real store with the run and its member."""
    store = WatchedStore(tmp_path / "agentrl.db")
    asyncio.run(store.begin())
    yield store
    asyncio.run(store.close())


@pytest.fixture
def make_scheduler(make_runner, make_task, store):
    """A scheduler of `tasks` tasks, for modules whose `store` is the watched one; call it inside a running loop."""

    def make(
        workflow, *, tasks=4, seed=0, total_steps=None, on_scored=None, shuffle=True, sleep=asyncio.sleep,
        eval_sampling=None, refresh=None, tools=None, **config
    ):  # fmt: skip
        return DrivenScheduler(
            tasks=[make_task(f"t{number}") for number in range(tasks)],
            runner=make_runner(workflow, tools=tools, **config),
            store=store,
            config=RolloutConfig(**config),
            seed=seed,
            shuffle=shuffle,
            total_steps=total_steps,
            on_scored=on_scored,
            sleep=sleep,
            eval_sampling=eval_sampling,
            refresh=refresh,
        )

    return make


class RecordingStore(MemoryStore):
    """Keeps what is stored of a real gateway's calls, too."""

    async def add_interaction(self, run_id, interaction):
        await asyncio.sleep(0)


@pytest.fixture(scope="session")
def model_dir(tmp_path_factory):
    return parts.make_model_dir(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="session")
def chat(model_dir):
    return Chat.from_directory(model_dir)


@pytest.fixture(scope="session")
def served(chat, model_dir):
    """One gateway for all tests that need a real one: it takes a while to start."""
    engine = parts.TalkingEngine(chat, model_dir)
    with parts.running_gateway(chat, engine, RecordingStore()) as gateway:
        yield SimpleNamespace(engine=engine, gateway=gateway)


@pytest.fixture
def engine(served):
    """Says `engine.replies`, one after the other, in ids of single characters; its log is the witness."""
    served.engine.replies.clear()
    served.engine.log.clear()
    return served.engine


@pytest.fixture
def play(served, engine, tmp_path):
    """Run one episode of anything that a config may name as a workflow, by a real gateway over `engine`."""
    registry = Registry((), SimpleNamespace(adapt_agent=lambda **_: None))

    def run(workflow, data=None, *, scorer=None, answer=None, options=None, is_eval=False, sampling=None, **config):
        resolved = resolve_workflow(workflow, registry=registry, base_dir=tmp_path, options=options)
        data = {"id": "t", "messages": [{"role": "user", "content": "2+2?"}]} | (data or {})
        task = Task(id=data["id"], data=data, answer=answer, scorer=None if scorer is None else "scorer")
        runner = Runner(
            source=resolved,
            gateway=served.gateway,
            store=RecordingStore(),
            scorer_for=lambda _: normalize_scorer(scorer, "scorer"),
            config=RolloutConfig(**config),
            run_id="run",
            grace_s=0.1,
        )
        episode = runner.run_episode(
            task, group_id="g", sample_index=0, seed_key=(1,), is_eval=is_eval, sampling=sampling
        )
        return asyncio.run(_with_clients_closed(episode))

    return run


async def _with_clients_closed(episode):
    try:
        return await episode
    finally:
        await close_borrowed()
