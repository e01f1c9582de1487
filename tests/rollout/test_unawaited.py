"""A forgotten `await` is told as such."""

import asyncio
import warnings

import pytest

from agentrl_core.rollout.unawaited import UnawaitedCalls


class Completions:
    async def create(self):
        pass


async def forgetful(data):
    Completions().create()
    return float("nan")


@pytest.mark.filterwarnings("default:coroutine .* was never awaited")
def test_a_call_that_was_never_awaited_is_named(make_runner, make_task):
    runner = make_runner(forgetful)
    with pytest.warns(RuntimeWarning, match="never awaited"), runner.unawaited.watching():
        episode = asyncio.run(runner.run_episode(make_task(), group_id="g", sample_index=0, seed_key=(1,)))
    assert episode.record.reason == "no_llm_call"
    assert episode.record.detail == (
        "the agent returned nan without an LLM call to the policy; Python says that Completions.create was never "
        "awaited: write `await` before that call"
    )


@pytest.mark.filterwarnings("default:coroutine .* was never awaited")
def test_a_coroutine_that_is_returned_is_named_in_the_first_episode(make_runner, make_task):
    async def returning(data):
        return Completions().create()

    with pytest.warns(RuntimeWarning, match="never awaited"):
        episode = asyncio.run(
            make_runner(returning).run_episode(make_task(), group_id="g", sample_index=0, seed_key=(1,))
        )
    assert episode.record.reason == "no_llm_call"
    assert episode.record.detail == (
        "the agent returned the coroutine Completions.create without an LLM call to the policy; write `await` before "
        "that call"
    )


def test_warnings_are_shown_as_before_and_after(monkeypatch):
    shown = []
    monkeypatch.setattr(warnings, "showwarning", lambda *warning: shown.append(str(warning[0])))
    calls = UnawaitedCalls()
    with calls.watching(), pytest.MonkeyPatch.context():
        warnings.showwarning(RuntimeWarning("another"), RuntimeWarning, "agent.py", 3)
    warnings.showwarning(RuntimeWarning("coroutine 'f' was never awaited"), RuntimeWarning, "agent.py", 3)
    assert shown == ["another", "coroutine 'f' was never awaited"]
    assert calls.told == ""
