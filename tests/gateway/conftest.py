"""Fixtures for gateway tests: a gateway over a scripted engine that logs token ids."""

import asyncio
import functools
import json
import threading
from contextlib import ExitStack, aclosing, contextmanager

import httpx2
import pytest
from openai import AsyncOpenAI
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

from agentrl_core.api.stores import RunRow
from agentrl_core.chat import Chat
from agentrl_core.config.sampling_sections import GatewayConfig, SamplingConfig
from agentrl_core.engines.scripted import ScriptedEngine
from agentrl_core.errors import StoreError, UnavailableError
from agentrl_core.gateway import Gateway
from agentrl_core.http.tls_context import ssl_context
from agentrl_core.stores.sqlite import SQLiteStore
from agentrl_core.types import Episode, Record

SPECIALS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
TAGS = ("<tool_call>", "</tool_call>")

TEMPLATE = """{%- if tools %}<|im_start|>system
{% for tool in tools %}{{ tool | tojson }}
{% endfor %}<|im_end|>
{% endif %}{%- for message in messages %}{%- if message.role == 'assistant' %}<|im_start|>assistant
{{ message.content }}{%- for call in message.tool_calls or [] %}
{%- if loop.index0 or message.content %}{{ '\\n' }}{% endif %}<tool_call>
{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments }}}
</tool_call>{%- endfor %}<|im_end|>
{% else %}<|im_start|>{{ message.role }}
{{ message.content }}<|im_end|>
{% endif %}{%- endfor %}{%- if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""


@pytest.fixture
def tools():
    properties = {"a": {"type": "integer"}, "b": {"type": "integer"}}
    return [{"type": "function", "function": {"name": "add", "parameters": {"properties": properties}}}]


@pytest.fixture
def call_text():
    return lambda name, arguments: f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>'


def make_model_dir(directory):
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=340, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator([TEMPLATE] * 2, trainer)
    tokenizer.add_special_tokens([AddedToken(text, special=True) for text in SPECIALS])
    tokenizer.add_tokens([AddedToken(text, special=False) for text in TAGS])
    tokenizer.save(str(directory / "tokenizer.json"))
    (directory / "chat_template.jinja").write_text(TEMPLATE)
    (directory / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<|im_end|>"}))
    return directory


@pytest.fixture(scope="session")
def model_dir(tmp_path_factory):
    return make_model_dir(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="session")
def chat(model_dir):
    return Chat.from_directory(model_dir)


class TalkingEngine(ScriptedEngine):
    """Says texts in ids that no tokenizer would choose: what is trained must be these, not a re-encoding.

    A reply is a text (its end-of-turn token is added) or an error to raise; "ok" once they are used up. The log,
    inherited, is the witness of what was asked and sampled.
    """

    def __init__(self, chat, model_dir):
        super().__init__(replies=self._next_reply, model_dir=model_dir, context_length=100_000)
        self.chat = chat
        self.replies = []
        self.break_at = None
        """After how many chunks a generation fails."""
        self.begun = [threading.Event() for _ in range(8)]
        """Set when a call is in the engine."""
        self.ended = [threading.Event() for _ in range(8)]
        """Set when a call is in the log."""
        self.start()

    async def generate(self, request):
        try:
            async with aclosing(super().generate(request)) as chunks:
                count = 0
                async for chunk in chunks:
                    if count == self.break_at:
                        raise UnavailableError("the connection broke")
                    yield chunk
                    count += 1
        finally:
            if len(self.log) <= len(self.ended):
                self.ended[len(self.log) - 1].set()

    def _next_reply(self, _prompt_ids, number):
        if number < len(self.begun):
            self.begun[number].set()
        reply = self.replies.pop(0) if self.replies else "ok"
        if isinstance(reply, Exception):
            raise reply
        ids = [token for character in reply for token in self.chat.encode(character)]
        return [*ids, *self.chat.encode("<|im_end|>")]


class MemoryStore:
    """Keeps interactions; a write waits while `gate` is set to an unset event, `error` refuses it."""

    def __init__(self):
        self.interactions = []
        self.gate = None
        self.writing = threading.Event()
        self.error = None

    async def add_interaction(self, run_id, interaction):
        self.writing.set()
        if self.error:
            raise StoreError(self.error)
        if self.gate is not None:
            await self.gate.wait()
        self.interactions.append(interaction)

    async def episode(self, record_id):
        found = tuple(item for item in self.interactions if item.record_id == record_id)
        return Episode(
            record=Record(id=record_id, run_id="run", task_id="t", group_id="g", sample_index=0), interactions=found
        )

    async def episodes(self, record_ids):
        return [await self.episode(record_id) for record_id in record_ids]


@pytest.fixture
def engine(chat, model_dir):
    return TalkingEngine(chat, model_dir)


@pytest.fixture
def store():
    return MemoryStore()


@contextmanager
def running_gateway(chat, engine, store, *, sampling=None, admin_key=None, context=None, **config):
    gateway = Gateway(
        engine=engine,
        chat=chat,
        store=store,
        run_id="run",
        sampling=sampling or SamplingConfig(max_tokens=2000),
        config=GatewayConfig(**config),
        seed=7,
        admin_key=admin_key,
        context=context,
    )
    gateway.start()
    try:
        yield gateway
    finally:
        gateway.close()


@pytest.fixture
def make_gateway(chat, engine, store):
    with ExitStack() as stack:
        yield lambda **config: stack.enter_context(running_gateway(chat, engine, store, **config))


@pytest.fixture
def gateway(make_gateway):
    return make_gateway()


ADMIN = "the-admin's-own-secret"


@pytest.fixture
def database(tmp_path):
    """A store in a file that knows the run."""
    store = SQLiteStore(path=tmp_path / "agentrl.db")
    asyncio.run(store.create_run(RunRow(id="run", created_at=0.0, status="running", config={}, components={})))
    yield store
    asyncio.run(store.close())


class Rest:
    """A client of the pages that open, end and reward sessions."""

    def __init__(self, gateway, key=ADMIN):
        self.gateway = gateway
        self.key = key

    async def post(self, path, body=None, *, key=None, method="POST"):
        headers = {"authorization": f"Bearer {key or self.key}"}
        content = json.dumps(body or {}).encode()
        return await self.gateway.http_client.request(method, self.gateway.url + path, content=content, headers=headers)

    async def start(self, task_id="t", **fields):
        """Open a session on capacity of its own."""
        await self.post("/grant_capacity")
        reply = await self.post("/rl/start_session", {"task_id": task_id, **fields})
        assert reply.status_code == 200, reply.text
        return reply.json()

    async def chat(self, key, *texts, **fields):
        """Call the policy with a dialogue that alternates between user and assistant."""
        messages = [{"role": ("user", "assistant")[i % 2], "content": text} for i, text in enumerate(texts)]
        return await self.post("/v1/chat/completions", {"messages": messages, **fields}, key=key)


@pytest.fixture
def online(chat, engine, database):
    """Make a client of a gateway whose admin key is known, on a store in a file."""
    with ExitStack() as stack:
        yield lambda **config: Rest(
            stack.enter_context(running_gateway(chat, engine, database, admin_key=ADMIN, **config))
        )


@pytest.fixture
def rest(online):
    return online()


@pytest.fixture
def make_record():
    numbers = iter(range(10**6))

    def make(**fields):
        number = next(numbers)
        return Record(id=f"r{number}", run_id="run", task_id="t", group_id="g", sample_index=number, **fields)

    return make


def opened(gateway, record, *, seed_key, **options):
    """Open a session without a loop: in process nothing waits."""
    try:
        gateway.open_session(record, seed_key=seed_key, **options).send(None)
    except StopIteration as end:
        return end.value
    raise AssertionError("opening a session in process waited")


@pytest.fixture
def open_session(make_record):
    def open_one(gateway, *, seed_key=None, sampling=None, **fields):
        record = make_record(**fields)
        return opened(gateway, record, seed_key=seed_key or (1, record.sample_index), sampling=sampling)

    return open_one


@pytest.fixture
def session(gateway, open_session):
    return open_session(gateway)


@pytest.fixture(params=["in process", "socket"])
def talk(request, gateway):
    """Run `scenario(client)` with an OpenAI client of a session, by either way into the gateway."""

    def run(session, scenario):
        async def talking():
            over_socket = httpx2.AsyncClient(verify=ssl_context(), timeout=60)
            http_client = gateway.http_client if request.param == "in process" else over_socket
            async with AsyncOpenAI(
                base_url=session.base_url, api_key=session.api_key, http_client=http_client, max_retries=0
            ) as client:
                return await scenario(client)

        return asyncio.run(talking())

    return run


@pytest.fixture
def send_to():
    """Send one raw request in process."""

    def run(gateway, session, body, *, path="/v1/chat/completions", method="POST", headers=None, token=True):
        url = (session.base_url if token else gateway.url) + path
        content = body if isinstance(body, bytes) else json.dumps(body).encode()

        async def sending():
            return await gateway.http_client.request(method, url, content=content, headers=headers)

        return asyncio.run(sending())

    return run


@pytest.fixture
def send(gateway, send_to):
    return functools.partial(send_to, gateway)
