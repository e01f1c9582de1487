"""The other kinds of workflow hold to what every workflow must do."""

from typing import Any

import pytest

from agentrl_core import AsyncSampler, ModelRequest, RolloutWorkflow
from agentrl_core.rollout.ready_made.turns import MultiTurn, SingleTurn
from agentrl_testing import WorkflowSuite


class Sampler(AsyncSampler):
    async def run(self, task):
        reply = await self.create_chat_completions(task.messages)
        self.record.meta_infos["said"] = reply.choices[0].message.content

    async def evaluate_record(self, record):
        return float(record.task.answer in record.meta_infos["said"])


class Tokens(RolloutWorkflow):
    async def arun_episode(self, engine, data):
        ids = engine.tokenizer.apply_chat_template(data["messages"], add_generation_prompt=True)
        response = await engine.agenerate(ModelRequest(input_ids=ids))
        return float(data["answer"] in engine.tokenizer.decode(response.output_tokens))


class Suite(WorkflowSuite):
    kind: Any = None

    @pytest.fixture
    def workflow(self):
        return self.kind

    @pytest.fixture
    def data(self):
        return {"id": "t", "messages": [{"role": "user", "content": "2 + 2?"}], "answer": "4"}


class TestSampler(Suite):
    kind = Sampler


class TestTokens(Suite):
    kind = Tokens


class TestSingleTurn(Suite):
    kind = SingleTurn


class TestMultiTurn(Suite):
    kind = MultiTurn(max_turns=2)
