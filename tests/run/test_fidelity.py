"""What the learner trains is what the engine sampled, from the agent's SDK to the training sample."""

import json
import random
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agentrl_core.batching.samples import training_samples
from agentrl_core.plugins.manager import load_registry
from agentrl_core.rollout.workflows import resolve_workflow
from agentrl_core.types import Group, Outcome, Task
from agentrl_testing.workflows import Rehearsal

words = st.text(st.characters(codec="utf-8", exclude_categories=["Cs"]), max_size=12)
calls = st.lists(st.tuples(st.sampled_from(["look", "add"]), st.dictionaries(words, st.integers() | words)), max_size=3)
turns = st.lists(st.tuples(words, calls), min_size=1, max_size=4)

TOOLS = [
    {"type": "function", "function": {"name": name, "parameters": {"type": "object", "properties": {}}}}
    for name in ("look", "add")
]


class Dialogue:
    """An agent that writes the history down in its own way before every call."""

    def __init__(self, num_turns: int, seed: int) -> None:
        self._num_turns, self._random = num_turns, random.Random(seed)

    async def run(self, data, *, base_url, api_key, http_client):
        from openai import AsyncOpenAI

        client = AsyncOpenAI(base_url=base_url, api_key=api_key, http_client=http_client, max_retries=0)
        messages = list(data["messages"])
        for turn in range(self._num_turns):
            reply = await client.chat.completions.create(model="default", messages=messages, tools=TOOLS)
            message = reply.choices[0].message.model_dump(exclude_none=True)
            messages.append(self._rewritten(message))
            messages.extend(
                {"role": "tool", "tool_call_id": call["id"], "content": f"résultat {turn}"}
                for call in message.get("tool_calls", [])
            )
            if not message.get("tool_calls"):
                messages.append({"role": "user", "content": f"go on, {turn}"})
        return 1.0

    def _rewritten(self, message):
        for call in message.get("tool_calls", []):
            arguments = json.loads(call["function"]["arguments"])
            if self._random.random() < 0.5:  # as frameworks re-serialise them
                call["function"]["arguments"] = json.dumps(arguments, indent=1, sort_keys=True)
        if not message.get("content") and self._random.random() < 0.5:
            message.pop("content", None)
        return message


@settings(max_examples=25, suppress_health_check=list(HealthCheck))
@given(script=turns, seed=st.integers(0, 99))
def test_a_linear_dialogue_is_one_sample_and_equals_the_engines_log_token_by_token(script, seed):
    replies = iter(
        text + "".join(f"<tool_call>{json.dumps({'name': name, 'arguments': args})}</tool_call>" for name, args in made)
        for text, made in script
    )
    with tempfile.TemporaryDirectory() as folder:
        rehearsal = Rehearsal(Path(folder), lambda _: next(replies))
        workflow = resolve_workflow(Dialogue(len(script), seed), registry=load_registry(), base_dir=Path(folder))
        task = Task(id="t", data={"id": "t", "messages": [{"role": "user", "content": "begin"}]})
        (episode,) = rehearsal.play(workflow, [task])
        log = rehearsal.engine.log
        rehearsal.close()
    assert episode.record.outcome is Outcome.SCORED, episode.record
    assert len(log) == len(script)

    group = Group(id="g", run_id="r", task_id="t", index=0, episodes=(episode,))
    samples = training_samples([group], {item.id: 1.0 for item in episode.interactions})
    (sample,) = samples.samples  # linear: exactly one row
    last = log[-1]
    assert list(sample.ids) == [*last.request.prompt_ids, *last.ids]
    trained = [sample.ids[position] for position in sample.positions]
    assert trained == [token for call in log for token in call.ids]
    assert list(sample.logprobs) == pytest.approx([value for call in log for value in call.logprobs], rel=1e-6)
    assert list(sample.versions) == [version for call in log for version in call.versions]
    for call in log:  # every trained token stands behind exactly the prompt that the engine saw
        start = len(call.request.prompt_ids)
        assert tuple(sample.ids[:start]) == call.request.prompt_ids
        assert tuple(sample.ids[start : start + len(call.ids)]) == call.ids
