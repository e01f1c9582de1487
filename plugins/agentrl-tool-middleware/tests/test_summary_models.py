"""The models of the browse agent: their order, retries, what counts as a failure, and that no key is shown."""

import asyncio
import logging

import pytest
from aiohttp import web

from agentrl_judge.testing import JudgeServer, completion, failing
from agentrl_tool_middleware.browse_settings import browse_options
from agentrl_tool_middleware.summary_models import NoSummaryError, SummaryModels

MESSAGES = [{"role": "user", "content": "summarise"}]
DOWN = {"base_url": "http://127.0.0.1:9", "model": "down"}


async def ask(servers, *, models=None, times=1, **options):
    """Ask the models of the servers in order; the texts, the waits, and the error if there is one."""
    waits = []

    async def sleep(seconds):
        waits.append(seconds)

    given = {"models": models or [server.model for server in servers], "max_retries": 2, "retry_delay": 1, **options}
    panel = SummaryModels(browse_options(given, None), sleep=sleep)
    found = []
    for _ in range(times):
        try:
            found.append(await panel.ask(MESSAGES))
        except NoSummaryError as error:
            found.append(error)
    return found, waits


def run(*replies, other=None, **options):
    async def body():
        async with JudgeServer(*replies).up() as first, JudgeServer(other or "from the second").up() as second:
            found, waits = await ask([first, second], **options)
            return found, waits, len(first.bodies), len(second.bodies), first

    return asyncio.run(body())


def test_the_first_model_is_asked_with_the_extra_fields():
    found, _, first, second, server = run("<think>hm</think>```markdown\n## Report\nx\n```", extra_body={"top_p": 0.5})
    assert (found, first, second) == (["## Report\nx"], 1, 0)
    assert server.bodies[0] == {"model": "judge-1", "messages": MESSAGES, "stream": False, "top_p": 0.5}


def test_a_failure_that_may_pass_is_retried_after_growing_waits():
    found, waits, first, second, _ = run(failing(503), completion(""), "fine")
    assert (found, first, second) == (["fine"], 3, 0)
    assert 0.5 <= waits[0] <= 1 <= waits[1] <= 2


def test_the_next_model_is_asked_after_the_last_retry():
    found, _, first, second, _ = run(failing(500))
    assert (found, first, second) == (["from the second"], 3, 1)


@pytest.mark.parametrize("reply", [failing(400), failing(401)])
def test_a_refusal_is_not_retried(reply):
    found, _, first, second, _ = run(reply)
    assert (found, first, second) == (["from the second"], 1, 1)


def test_a_reply_that_is_no_completion_and_one_that_never_comes_count_as_failures():
    found, _, _, _, _ = run(web_text("nonsense"), other=failing(400, "no"), max_retries=0)
    assert "the reply is not a chat completion" in str(found[0])

    async def never(_):
        await asyncio.Event().wait()

    found, _, _, _, _ = run(never, max_retries=0, timeout=0.05)
    assert found == ["from the second"]


def web_text(text):
    return lambda _: web.Response(text=text)


def test_all_failures_are_told_without_the_key(monkeypatch, caplog):
    monkeypatch.setenv("BROWSE_KEY", "sk-secret")

    async def body():
        async with JudgeServer(failing(400, "the key sk-secret is wrong")).up() as server:
            models = [{**server.model, "api_key_env": "BROWSE_KEY"}, DOWN, {**DOWN, "api_key_env": "NOWHERE_SET"}]
            return await ask([], models=models, max_retries=0, enable_logging=True), server.headers[0]["Authorization"]

    with caplog.at_level(logging.DEBUG):
        (((error,), _), sent) = asyncio.run(body())
    assert sent == "Bearer sk-secret"
    for part in ("judge-1 at http://127.0.0.1", "status 400", "down at", "no API key: the variable NOWHERE_SET"):
        assert part in str(error)
    assert "sk-secret" not in str(error) + caplog.text
    assert "failed in" in caplog.text


def test_a_model_that_failed_several_times_is_left_alone():
    found, _, first, second, _ = run(failing(500), max_retries=0, times=7)
    assert (found, first, second) == (["from the second"] * 7, 5, 7)


def test_a_model_of_the_runs_upstreams_is_asked_within_the_episode():
    import httpx2

    from agentrl_core import workflow_context

    sent = []

    class Here:
        base_url, api_key = "http://gateway/s/token", "the-key"

        class http_client:  # noqa: N801
            @staticmethod
            async def post(url, *, json, headers):
                sent.append((url, json, headers))
                if len(sent) > 1:
                    error = {"code": "upstream_failed", "message": "the provider is down"}
                    return httpx2.Response(502, json={"error": error})
                return httpx2.Response(200, json=completion("the summary"))

    async def body():
        workflow_context.enter(Here())
        return await ask([], models=[{"upstream": "reader"}], times=2)

    (first, second), _ = asyncio.run(body())
    assert first == "the summary"
    assert "upstream reader: the provider is down" in str(second)
    assert sent[0] == (
        "http://gateway/s/token/v1/chat/completions",
        {"model": "reader", "messages": MESSAGES},
        {"authorization": "Bearer the-key"},
    )
