"""The replies that the gateway's benchmark prepares are those that the engine for vLLM reads."""

import asyncio

import pytest

from agentrl_testing.engines import ask, run
from agentrl_vllm.engine import VLLMEngine

mock = pytest.importorskip("tests.benchmarks.gateway.mock", reason="its loop is uvloop's", exc_type=ImportError)


def test_the_mock_speaks_as_vllm_does(monkeypatch):
    monkeypatch.setattr(mock, "_RAW", [mock._json(mock.raw_completion(0))])
    monkeypatch.setattr(mock, "DIFFERENT", 1)

    async def talk():
        server = await asyncio.get_running_loop().create_server(mock._Answering, "127.0.0.1", 0)
        engine = VLLMEngine(url=f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
        try:
            await asyncio.to_thread(engine.start)
            return await ask(engine, [1, 2, 3], max_tokens=mock.TOKENS)
        finally:
            engine.close()
            server.close()

    result = run(talk())
    assert result.ids == (*mock.token_ids(0)[: mock.TOKENS - 1], mock.END_OF_TURN)
    assert set(result.logprobs) == {-0.25}
