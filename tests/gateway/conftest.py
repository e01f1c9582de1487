"""A gateway over an engine that says what the test tells it to, and keeps its own log of ids."""

import asyncio
import functools
import json
import threading
from contextlib import ExitStack, aclosing, contextmanager

import httpx2
import pytest
from openai import AsyncOpenAI
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

from agentrl_core.chat import Chat
from agentrl_core.config.schema import GatewayConfig, SamplingConfig
from agentrl_core.errors import StoreError
from agentrl_core.gateway import Gateway
from agentrl_core.gateway.transport import ssl_context
from agentrl_core.testing.scripted import ScriptedEngine
from agentrl_core.types import Record

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


@pytest.fixture(scope="session")
def model_dir(tmp_path_factory):
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=340, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator([TEMPLATE] * 2, trainer)
    tokenizer.add_special_tokens([AddedToken(text, special=True) for text in SPECIALS])
    tokenizer.add_tokens([AddedToken(text, special=False) for text in TAGS])
    directory = tmp_path_factory.mktemp("model")
    tokenizer.save(str(directory / "tokenizer.json"))
    (directory / "chat_template.jinja").write_text(TEMPLATE)
    (directory / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<|im_end|>"}))
    return directory


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
        self.begun = [threading.Event() for _ in range(8)]
        """Set when a call is in the engine."""
        self.ended = [threading.Event() for _ in range(8)]
        """Set when a call is in the log."""
        self.start()

    async def generate(self, request):
        try:
            async with aclosing(super().generate(request)) as chunks:
                async for chunk in chunks:
                    yield chunk
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


@pytest.fixture
def engine(chat, model_dir):
    return TalkingEngine(chat, model_dir)


@pytest.fixture
def store():
    return MemoryStore()


@contextmanager
def running_gateway(chat, engine, store, *, sampling=None, **config):
    gateway = Gateway(
        engine=engine,
        chat=chat,
        store=store,
        run_id="run",
        sampling=sampling or SamplingConfig(max_tokens=2000),
        config=GatewayConfig(**config),
        seed=7,
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


@pytest.fixture
def make_record():
    numbers = iter(range(10**6))

    def make(**fields):
        number = next(numbers)
        return Record(id=f"r{number}", run_id="run", task_id="t", group_id="g", sample_index=number, **fields)

    return make


@pytest.fixture
def open_session(make_record):
    def open_one(gateway, **fields):
        record = make_record(**fields)
        return gateway.open_session(record, seed_key=(1, record.sample_index))

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
