"""The suites of the smaller kinds, on what core itself registers, and on what breaks their rules."""

import functools
import itertools
import math
from pathlib import Path

import attrs
import pytest
import typer

from agentrl_core.batching.advantages import (
    GRPO,
    AgentCPM,
    DrGRPO,
    LeaveOneOut,
    NoBaseline,
    Norm,
    PerTurn,
    ReinforcePP,
)
from agentrl_core.batching.credit import InsertionOrderCredit, TreeCredit
from agentrl_core.batching.filters import BalanceSample, MinTurns, Overlong, ZeroVariance
from agentrl_core.batching.group_orders import Fifo, Freshest, Priority
from agentrl_core.batching.shaping import Affine, Malformed, Rank
from agentrl_core.batching.shaping import Overlong as OverlongPunishment
from agentrl_core.chat.parsers.hermes import HermesParser
from agentrl_core.chat.parsers.llama3 import Llama3Parser
from agentrl_core.cli.plugins import app
from agentrl_core.data.tasks import load_tasks
from agentrl_core.gateway.compaction import Unchanged
from agentrl_core.models import tiny
from agentrl_core.stores.sqlite import SQLiteStore
from agentrl_core.trackers.console import ConsoleTracker
from agentrl_core.trackers.jsonl import JsonlTracker
from agentrl_core.types import Task
from agentrl_testing import (
    AdvantageSuite,
    CommandSuite,
    ContextPolicySuite,
    CreditSuite,
    DatasetSuite,
    FilterSuite,
    GroupOrderSuite,
    ModelSuite,
    ShapingSuite,
    StoreSuite,
    ToolParserSuite,
    TrackerSuite,
    check_advantage,
    check_command,
    check_context,
    check_correction,
    check_credit,
    check_dataset,
    check_filter,
    check_group_order,
    check_shaping,
    check_tool_parser,
    check_tracker,
)

QUICKSTART = Path(__file__).parents[3] / "cookbook" / "quickstart"


class TestAdvantages(AdvantageSuite):
    @pytest.fixture(
        params=[
            GRPO(),
            GRPO(std=False),
            DrGRPO(),
            PerTurn(),
            LeaveOneOut(),
            AgentCPM(),
            NoBaseline(),
            ReinforcePP(),
            ReinforcePP(baseline=False, weigh="token"),
            Norm(),
            Norm(mean_level="batch", std_level="group"),
        ]
    )
    def estimator(self, request):
        return request.param


class TestCredits(CreditSuite):
    @pytest.fixture(params=[TreeCredit(turn_discount=0.5), InsertionOrderCredit()])
    def credit(self, request):
        return request.param


class TestFilters(FilterSuite):
    @pytest.fixture(params=[ZeroVariance(), ZeroVariance(min_range=0.1), BalanceSample(), Overlong(), MinTurns()])
    def group_filter(self, request):
        return request.param


class TestShapings(ShapingSuite):
    @pytest.fixture(params=[OverlongPunishment(max_tokens=6, buffer_tokens=4), Rank(), Affine(bias=1.0), Malformed()])
    def shaping(self, request):
        return request.param


class TestGroupOrders(GroupOrderSuite):
    @pytest.fixture(params=[Fifo(), Freshest(), Priority(), Priority(field="level", default=1.0)])
    def order(self, request):
        return request.param

    @pytest.fixture
    def task(self):
        return Task(id="t", data={"level": 3, "priority": -0.5})


class TestJsonlTracker(TrackerSuite):
    @pytest.fixture
    def tracker_factory(self):
        return lambda folder: JsonlTracker(run_dir=folder)


class TestConsoleTracker(TrackerSuite):
    @pytest.fixture
    def tracker_factory(self):
        return lambda folder: ConsoleTracker(run_dir=folder)


class TestDatasets(DatasetSuite):
    @pytest.fixture
    def dataset(self):
        return functools.partial(load_tasks, QUICKSTART / "heldout.jsonl")


class TestHermes(ToolParserSuite):
    @pytest.fixture
    def parser(self):
        return HermesParser()

    @pytest.fixture
    def examples(self):
        text = 'Well. <tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>'
        return [(text, "Well.", [("add", {"a": 1})]), ("Only words.", "Only words.", [])]


class TestLlama3(ToolParserSuite):
    @pytest.fixture
    def parser(self):
        return Llama3Parser()

    @pytest.fixture
    def examples(self):
        return [('{"name": "add", "parameters": {"a": 1}}', "", [("add", {"a": 1})])]


class TestTiny(ModelSuite):
    @pytest.fixture
    def builder(self):
        return functools.partial(tiny.build, size="0.1M", vocab_size=300)


class TestCommands(CommandSuite):
    @pytest.fixture
    def command(self):
        return app


@attrs.frozen
class Rigged:
    """Whatever a test needs an estimator, a credit or a filter to answer."""

    answer: object
    reason: str = "rigged"

    def advantages(self, rewards):
        return self.answer(rewards)

    def turn_advantages(self, returns):
        return [[self.answer([turn])[0] for turn in turns] for turns in returns]

    def credit(self, episode):
        return self.answer(episode)

    def keep(self, group, advantages):
        return self.answer(group)

    def urgency(self, group):
        return self.answer(group)


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        (lambda rewards: [1.0], "2 rewards got 1 advantages"),
        (lambda rewards: [math.nan for _ in rewards], "got .nan."),
        (lambda rewards: [float(index) for index, _ in enumerate(rewards)], "rewards"),
        (lambda rewards: [-reward for reward in rewards], "rewards .* got"),
    ],
)
def test_an_estimator_that_breaks_a_rule_is_caught(answer, told):
    with pytest.raises(AssertionError, match=told):
        check_advantage(Rigged(answer))


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        (lambda episode: {}, "one call: expected a share for each interaction, found {}"),
        (lambda episode: {item.id: math.inf for item in episode.interactions}, "inf"),
        (lambda episode: {item.id: 0.0 for item in episode.interactions}, "reaches no interaction"),
    ],
)
def test_a_credit_that_breaks_a_rule_is_caught(answer, told):
    with pytest.raises(AssertionError, match=told):
        check_credit(Rigged(answer))


@attrs.frozen
class RiggedStep(NoBaseline):
    """An estimator whose second stage is whatever a test needs."""

    answer: object

    def normalise(self, calls):
        return self.answer([call.advantage for call in calls])


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        (lambda values: values[1:], "1 calls of a step got 0 advantages"),
        (lambda values: [math.nan for _ in values], "a step's advantages 0.5 got .nan."),
        (
            lambda values: [value + index for index, value in enumerate(values)],
            "the order of a step's calls changes their advantages",
        ),
        (lambda values: [-value for value in values], "a step's advantages 0.5, 0.25, .* got"),
    ],
)
def test_an_estimator_that_spoils_a_step_is_caught(answer, told):
    with pytest.raises(AssertionError, match=told):
        check_advantage(RiggedStep(answer))
    check_advantage(RiggedStep(list))


@attrs.frozen
class RiggedShaping:
    """Whatever a test needs a shaping to answer."""

    answer: object = list
    bounds: object = dict

    def shape(self, group, rewards):
        return self.answer(rewards)

    def bound(self, group, advantages):
        return self.bounds(advantages)


@pytest.mark.parametrize(
    ("rigged", "told"),
    [
        (RiggedShaping(lambda rewards: [1.0]), "2 rewards got 1 shaped ones"),
        (RiggedShaping(lambda rewards: [math.inf for _ in rewards]), "got .inf"),
        (RiggedShaping(lambda rewards: [float(index) for index, _ in enumerate(rewards)]), "rewards"),
        (RiggedShaping(lambda rewards: rewards.clear() or [0.0] if isinstance(rewards, list) else [0.0]), "rewards"),
        (RiggedShaping(bounds=lambda advantages: {}), "became those of"),
        (RiggedShaping(bounds=lambda advantages: dict.fromkeys(advantages, math.nan)), "got .*nan"),
    ],
)
def test_a_shaping_that_breaks_a_rule_is_caught(rigged, told):
    with pytest.raises(AssertionError, match=told):
        check_shaping(rigged)
    check_shaping(RiggedShaping())


def test_a_filter_that_breaks_a_rule_is_caught():
    with pytest.raises(AssertionError, match="expected a word such as zero_variance, found 'Two Words'"):
        check_filter(Rigged(lambda group: True, reason="Two Words"))
    with pytest.raises(AssertionError, match="expected True, False or ids of the group's records, found 1"):
        check_filter(Rigged(lambda group: 1))
    answers = iter([True, False] * 10)
    with pytest.raises(AssertionError, match="rewards"):
        check_filter(Rigged(lambda group: next(answers)))


def test_an_order_that_breaks_a_rule_is_caught():
    for wrong in (None, math.nan, (1, 2)):
        with pytest.raises(AssertionError, match="expected a number, found"):
            check_group_order(Rigged(lambda group, wrong=wrong: wrong))
    counter = itertools.count()
    with pytest.raises(AssertionError, match="another number the second time"):
        check_group_order(Rigged(lambda group: next(counter)))


def test_a_tracker_that_forgets_is_caught(tmp_path):
    class Forgetful(JsonlTracker):
        def __init__(self, *, run_dir):
            (run_dir / "metrics.jsonl").unlink(missing_ok=True)
            super().__init__(run_dir=run_dir)

        def run_started(self, run):
            pass

        def step_finished(self, report):
            if report.step == 1:
                super().step_finished(report)

        def run_finished(self, summary):
            pass

    with pytest.raises(AssertionError, match=r"a resumed run emptied .*metrics\.jsonl"):
        check_tracker(lambda folder: Forgetful(run_dir=folder), tmp_path)


@pytest.mark.parametrize(
    ("tasks", "told"),
    [
        ([], "no tasks"),
        ([{"id": "a"}], "expected tasks, found dict"),
        ([Task(id="a", data={"query": "?"})] * 2, "several tasks have the id 'a'"),
        ([Task(id="a", data={})], "task 'a' has neither messages nor a query"),
        ([Task(id="a", data={"query": "?", "x": (1,)})], "changes when it is stored as JSON"),
        ([Task(id="a", data={"query": "?"}, answer=4)], "answer 4"),
    ],
)
def test_a_data_set_that_breaks_a_rule_is_caught(tasks, told):
    with pytest.raises(AssertionError, match=told):
        check_dataset(lambda: tasks)


def test_a_correction_that_changes_on_policy_gradients_is_caught():
    class Doubling:
        needs = frozenset()

        def correct(self, batch, output):
            return attrs.evolve(output, per_token=2 * output.per_token)

    with pytest.raises(AssertionError, match="on-policy, the gradient is not that of"):
        check_correction(Doubling())


def test_a_store_that_loses_the_sign_of_zero_is_caught(tmp_path):
    class Unsigned(SQLiteStore):
        async def episode(self, record_id):
            found = await super().episode(record_id)
            calls = [attrs.evolve(call, logprobs=tuple(x + 0.0 for x in call.logprobs)) for call in found.interactions]
            return attrs.evolve(found, interactions=tuple(calls))

    with pytest.raises(AssertionError):
        StoreSuite().test_logprobs_keep_their_32_bits(Unsigned(path=tmp_path / "agentrl.db"))


def test_a_parser_that_loses_a_call_is_caught():
    class Silent(HermesParser):
        def read(self, source, sink, tools):
            source.at = len(source.text)
            yield from ()

    with pytest.raises(AssertionError):
        check_tool_parser(Silent(), [('<tool_call>{"name": "f", "arguments": {}}</tool_call>', "", [("f", {})])])


def test_a_command_without_a_description_is_caught():
    def silent() -> None:
        raise typer.Exit

    with pytest.raises(AssertionError, match="give it a docstring"):
        check_command(silent)


class TestContexts(ContextPolicySuite):
    @pytest.fixture
    def policy(self):
        return Unchanged()


def shortened(make):
    """A context policy that shortens full histories by `make(messages)`."""

    class Policy:
        async def compact(self, messages, usage, ask):
            return make(messages) if usage.prompt_tokens > 1000 else None

    return Policy()


def hasty():
    """A context policy that shortens whatever it gets."""

    class Policy:
        async def compact(self, messages, usage, ask):
            return messages[:1]

    return Policy()


def overwriting(messages):
    messages[-1]["content"] = ""
    return messages


def forgetful():
    seen = []

    def make(messages):
        seen.append(messages)
        return [*messages, {"role": "user", "content": "x" * len(seen)}]

    return shortened(make)


def headless(messages):
    return messages[1:] or messages


@pytest.mark.parametrize(
    ("policy", "problem"),
    [
        (hasty(), "1 of 100000 tokens, but the policy made"),
        (shortened(lambda messages: []), "returned no messages"),
        (
            shortened(lambda messages: [one for one in messages if one["role"] != "tool"]),
            "calls without their results",
        ),
        (shortened(lambda messages: [one for one in messages if one["role"] != "assistant"]), "without its call"),
        (shortened(headless), "became"),
        (shortened(overwriting), "the policy changed"),
        (forgetful(), "shortened differently the second time"),
    ],
    ids=["hasty", "empty", "unanswered", "without call", "headless", "overwriting", "with memory"],
)
def test_a_context_policy_that_breaks_a_rule_is_told(policy, problem):
    with pytest.raises(AssertionError, match=problem):
        check_context(policy)
