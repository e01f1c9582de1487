"""Process of the measured gateway; JSON lines on stdin make it do what a run would do."""

from __future__ import annotations

import argparse
import asyncio
import gc
import itertools
import json
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson
import psutil
import uvloop
from tests.benchmarks.gateway import mock
from tests.benchmarks.gateway.model import words
from tests.benchmarks.gateway.raw_client import Answer, Target
from tests.benchmarks.gateway.talk import Talk, opening, text

from agentrl_core.api.stores import RunRow
from agentrl_core.chat.facade import Chat
from agentrl_core.config.sampling_sections import GatewayConfig, SamplingConfig
from agentrl_core.gateway import Gateway
from agentrl_core.gateway.serving.web import HttpRequest
from agentrl_core.stores.sqlite import SQLiteStore
from agentrl_core.types import Chunk, FinishReason, GenerateRequest, Record
from agentrl_vllm.engine import VLLMEngine

if TYPE_CHECKING:
    from agentrl_core.api.engines import Engine
    from agentrl_core.gateway.sessions import Session

OUTPUT_TOKENS = 64
_REPLIES = 997
"""Different ones: prime, so that no pattern of calls meets the same reply at the same turn."""


class ReplayEngine:
    """Says prepared replies at once: all that is measured is the gateway."""

    version = 0
    context_length = 1_000_000
    cpu_seconds = 0.0

    def __init__(self, replies: Iterable[tuple[int, ...]]) -> None:
        self._replies = itertools.cycle(list(replies))
        self.longest_prompt = 0
        self.next_reply: tuple[int, ...] | None = None
        self._logprobs = tuple(-0.01 * index for index in range(OUTPUT_TOKENS))

    def start(self) -> None:
        """Nothing to start."""

    async def generate(self, request: GenerateRequest) -> AsyncIterator[Chunk]:
        """Say the next reply, in one chunk or, for a stream, token by token."""
        ids, self.next_reply = self.next_reply or next(self._replies), None
        logprobs = self._logprobs[: len(ids)]
        last = len(ids) - 1
        self.longest_prompt = max(self.longest_prompt, len(request.prompt_ids))
        if not request.stream:
            yield Chunk(ids=ids, logprobs=logprobs, version=0, finish_reason=FinishReason.STOP)
            return
        for index, token in enumerate(ids):
            await asyncio.sleep(0)
            yield Chunk(
                ids=(token,),
                logprobs=(logprobs[index],),
                version=0,
                finish_reason=FinishReason.STOP if index == last else None,
            )

    async def abort(self, request_id: str) -> None:
        """Nothing runs long enough to be aborted."""


def _replies(chat: Chat) -> Iterator[tuple[int, ...]]:
    (end,) = chat.stop_token_ids
    source = words("replies")
    for _ in range(_REPLIES):
        said = chat.encode(" ".join(itertools.islice(source, OUTPUT_TOKENS)))
        yield (*said[: OUTPUT_TOKENS - 1], end)


class Run:
    """A gateway with a store, and the sessions that the benchmark opened."""

    def __init__(self, model: Path, folder: Path, upstream: str | None = None, *, says_mock: bool = False) -> None:
        chat = Chat.from_directory(model)
        self._chat = chat
        self._id = f"run-{time.time_ns()}"
        self._engine: Engine = ReplayEngine(map(mock.reply_ids, range(mock.DIFFERENT)) if says_mock else _replies(chat))
        if upstream is not None:
            self._engine = VLLMEngine(url=upstream)
        self._engine.start()
        self._store = SQLiteStore(path=folder / "store.db")
        self.gateway = Gateway(
            engine=self._engine,
            chat=chat,
            store=self._store,
            run_id=self._id,
            sampling=SamplingConfig(),
            config=GatewayConfig(),
            seed=0,
        )
        self._sessions: list[Session] = []
        self._numbers = itertools.count()
        self._group = ""

    async def begin(self) -> None:
        """Announce the run and listen."""
        run = RunRow(id=self._id, created_at=time.time(), status="running", config={}, components={})
        await self._store.create_run(run)
        (self._group,) = await self._store.add_evaluation(self._id, "train", ["task"], version=0, claimable=False)
        self.gateway.start()

    async def open(self, count: int) -> list[dict[str, str]]:
        """Open sessions; their URLs and keys."""
        for _ in range(count):
            number = next(self._numbers)
            record = Record(
                id=f"{self._id}-{number}",
                run_id=self._id,
                task_id="task",
                group_id=self._group,
                sample_index=number,
            )
            await self._store.add_record(record)
            self._sessions.append(await self.gateway.open_session(record, seed_key=(0, number)))
        return [{"url": item.base_url, "key": item.api_key} for item in self._sessions[-count:]]

    async def close(self) -> int:
        """End all sessions, as an export does; how many interactions they had."""
        found = [await self.gateway.close_session(session) for session in self._sessions]
        self._sessions.clear()
        return sum(map(len, found))

    async def records(self) -> str:
        """Return what is stored of the last sessions, also of those before a restart, as text."""
        found = [record for run in await self._store.runs() for record in (await self._store.records(run.id))[-3:]]
        return repr([await self._store.episode(record.id) for record in found])

    async def say_call(self) -> None:
        """Let the next prepared reply be a tool call."""
        if isinstance(self._engine, ReplayEngine):
            text_of_call = '<tool_call>\n{"name": "add", "arguments": {"a": 1, "b": 2}}\n</tool_call>'
            self._engine.next_reply = (*self._chat.encode(text_of_call), *self._chat.stop_token_ids)

    async def rss(self) -> float:
        """Resident memory in MiB."""
        return _rss_mb()

    async def longest_prompt(self) -> int:
        """Return the tokens of the longest prompt that the prepared replies were given to since the last question."""
        if not isinstance(self._engine, ReplayEngine):
            return 0
        found, self._engine.longest_prompt = self._engine.longest_prompt, 0
        return found

    async def grow(self, sessions: int, turns: int) -> dict[str, float]:
        """Hold conversations in process; memory in MiB before and after."""
        before = _rss_mb()
        for number, opened in enumerate(await self.open(sessions)):
            talk = Talk(target=_NOWHERE, messages=opening((number, "grow"), 600))
            for turn in range(turns):
                talk.reply(await self._handle(opened, talk.body()), text((number, turn), 100))
        return {"before": before, "after": _rss_mb()}

    async def in_process(self, count: int) -> dict[str, float]:
        """Return CPU ms of turn 5 by the gateway's own function, and by the HTTP client that agents borrow."""
        spent = {"handle": 0.0, "client": 0.0}
        for number, (way, opened) in enumerate(zip(itertools.cycle(spent), await self.open(2 * count), strict=False)):
            talk = Talk(target=_NOWHERE, messages=opening((number, "in process"), 1700))
            for turn in range(4):
                talk.reply(await self._handle(opened, talk.body()), text((number, turn), 280))
            body, before = talk.body(), time.process_time()
            if way == "handle":
                await self._handle(opened, body)
            else:
                headers = {"authorization": f"Bearer {opened['key']}", "content-type": "application/json"}
                url = f"{opened['url']}/v1/chat/completions"
                await self.gateway.http_client.post(url, content=body, headers=headers)
            spent[way] += time.process_time() - before
        return {way: 1e3 * seconds / count for way, seconds in spent.items()}

    async def _handle(self, opened: dict[str, str], body: bytes) -> Answer:
        path = opened["url"].removeprefix(self.gateway.url) + "/v1/chat/completions"
        headers = {"authorization": f"Bearer {opened['key']}"}
        response = await self.gateway.router.handle(HttpRequest(method="POST", path=path, headers=headers, body=body))
        if not isinstance(response.body, bytes) or response.status != 200:
            raise RuntimeError(f"the gateway answered {response}")
        return Answer(status=response.status, headers={}, body=response.body)


_NOWHERE = Target(host="", port=0, path="")


def _rss_mb() -> float:
    gc.collect()
    return float(psutil.Process().memory_info().rss / 2**20)


async def main() -> None:
    """Serve until stdin ends."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--upstream", help="URL of a vLLM server that samples, in place of prepared replies")
    parser.add_argument("--says-mock", action="store_true", help="prepared replies are those of the vLLM server")
    parser.add_argument("--context", type=int, default=ReplayEngine.context_length, help="tokens")
    parser.add_argument("--folder", type=Path, help="where the store is kept; a temporary one by default")
    arguments = parser.parse_args()
    ReplayEngine.context_length = arguments.context
    with tempfile.TemporaryDirectory() as temporary:
        # On a thread, because the engine of a model server starts with an event loop of its own.
        folder = arguments.folder or Path(temporary)
        run = await asyncio.to_thread(Run, arguments.model, folder, arguments.upstream, says_mock=arguments.says_mock)
        await run.begin()
        _tell({"url": run.gateway.url})
        for line in sys.stdin.buffer:
            question: dict[str, Any] = orjson.loads(line)
            _tell(await getattr(run, question.pop("do"))(**question))
        await run.close()
        run.gateway.close()


def _tell(answer: object) -> None:
    print(json.dumps(answer), flush=True)  # noqa: T201 - the line that the benchmark waits for


if __name__ == "__main__":
    uvloop.run(main())
