from agentrl_core.rollout.statistics import rollout_metrics
from agentrl_core.types import Episode, Group, Interaction, Outcome, Record


def episode(calls, *, seconds):
    """`calls`: (number of tool calls, of malformed ones, of output tokens) of each LLM call."""
    record = Record(
        id="r", run_id="run", task_id="t", group_id="g", sample_index=0,
        outcome=Outcome.SCORED, started_at=10.0, finished_at=10.0 + seconds,
    )  # fmt: skip
    interactions = tuple(
        Interaction(
            id=f"c{seq}",
            record_id="r",
            seq=seq,
            prompt_ids=(1,),
            output_ids=(2,) * tokens,
            logprobs=(0.0,) * tokens,
            versions=((0, tokens),),
            messages=(),
            output={"role": "assistant", "content": None, "tool_calls": [{}] * tools} if tools else {"content": "x"},
            tool_errors=errors,
        )
        for seq, (tools, errors, tokens) in enumerate(calls)
    )
    return Episode(record=record, interactions=interactions)


def group(*episodes):
    return Group(id="g", run_id="run", task_id="t", index=0, episodes=episodes)


def test_means_are_over_records():
    groups = [
        group(episode([(2, 0, 5), (0, 1, 3)], seconds=4.0), episode([(1, 0, 2)], seconds=2.0)),
        group(episode([(0, 0, 2)], seconds=0.0)),
    ]
    assert rollout_metrics(groups) == {
        "rollout/llm_calls_per_episode": 4 / 3,
        "rollout/tool_calls_per_episode": 1.0,
        "rollout/tool_errors_per_episode": 1 / 3,
        "rollout/output_tokens_per_episode": 4.0,
        "rollout/episode_s": 2.0,
    }


def test_nothing_sampled_gives_no_numbers():
    assert rollout_metrics([]) == {}
