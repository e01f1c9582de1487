import pytest
from opentelemetry import context as telemetry
from opentelemetry import trace
from smolagents import ChatMessage, Model, OpenAIModel, local_python_executor
from smolagents.models import REMOVE_PARAMETER, MessageRole

from agentrl_core.errors import PluginError
from agentrl_core.types import Outcome
from agentrl_smolagents import routing


class Provider(Model):
    """A model of another kind, that is not to be asked."""

    def generate(self, messages, **kwargs):
        return ChatMessage(role=MessageRole.ASSISTANT, content="the provider")


ASKED = [ChatMessage(role=MessageRole.USER, content=[{"type": "text", "text": "?"}])]


@pytest.fixture
def in_episode(world, ask):
    """What a function gives that is called inside an episode, on its thread, and the episode."""

    def run(function):
        found = []

        def workflow(data):
            with routing.route_to_policy():
                found.append(function())
            return 1.0

        [episode] = world.play(workflow, ask("?"))
        assert episode.record.outcome is Outcome.SCORED, episode.record.detail
        return found[0], episode

    return run


def test_a_model_of_any_kind_answers_with_the_policy_inside_an_episode_alone(world, in_episode):
    world.says("the policy")
    model = Provider(model_id="some/model")
    routing.install()
    assert model.generate(ASKED).content == "the provider"
    replies, episode = in_episode(lambda: [model(ASKED).content, model.generate(ASKED).content])
    assert replies == ["the policy"] * 2
    assert {interaction.model for interaction in episode.interactions} == {"some/model"}
    assert model.generate(ASKED).content == "the provider"
    with pytest.raises(LookupError, match="outside an episode"), routing.route_to_policy():
        pass


def test_arguments_of_a_model_go_with_the_call_but_for_its_providers_own(world, in_episode):
    world.says("hi")
    own = {"api_version": "9", "timeout": 1e-6, "seed": REMOVE_PARAMETER, "max_new_tokens": 7}
    in_episode(lambda: Provider(model_id="m", **own).generate(ASKED, stop_sequences=["x"]))
    sampling = world.engine.log[0].request.sampling
    assert (sampling.max_tokens, tuple(sampling.stop)) == (7, ("x",))


def test_a_call_that_is_too_much_is_not_tried_again(world, build, ask, monkeypatch):
    """smolagents tries again what looks like a rate limit."""
    world.engine.refuse = True
    monkeypatch.setattr("smolagents.models.is_rate_limit_error", lambda error: True)
    [episode] = world.play(build(), ask("?"))
    assert (episode.record.outcome, world.engine.calls) == (Outcome.FAILED, 1)


def test_the_id_of_a_reply_is_that_of_its_interaction(world, model, in_episode):
    world.says("hi")
    reply, episode = in_episode(lambda: model.generate(ASKED))
    assert reply.raw.id == episode.interactions[0].id


def test_nothing_of_an_episode_is_traced(world, model, in_episode):
    world.says("hi")

    def look():
        span = trace.get_current_span().get_span_context()
        return span.is_valid, span.trace_flags.sampled, telemetry.get_value("suppress_instrumentation")

    assert in_episode(lambda: (model.generate(ASKED), look())[1])[0] == (True, False, True)
    assert telemetry.get_value("suppress_instrumentation") is None


def test_installing_again_changes_nothing():
    routing.install()
    before = (Model.generate, OpenAIModel.generate, OpenAIModel.generate_stream)
    routing.install()
    assert before == (Model.generate, OpenAIModel.generate, OpenAIModel.generate_stream)


def test_a_smolagents_with_other_entrances_is_refused_by_version(monkeypatch):
    monkeypatch.delattr(local_python_executor, "ThreadPoolExecutor")
    with pytest.raises(PluginError, match=r"of smolagents 1\.\S+, whose Model\.generate or local_python_executor"):
        routing.install()
