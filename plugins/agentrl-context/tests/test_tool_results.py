"""`discard_tool_results` empties old results and keeps all calls."""

import pytest

from agentrl_context.tool_results import DiscardToolResults
from agentrl_testing import ContextPolicySuite


class TestConformance(ContextPolicySuite):
    @pytest.fixture(params=[0, 1, 3])
    def policy(self, request):
        return DiscardToolResults(keep=request.param)


def test_old_results_are_replaced_and_the_newest_stay(compact, history):
    messages = history(4)
    found = compact(DiscardToolResults(keep=2, placeholder="gone"), messages)
    assert [one["content"] for one in found if one["role"] == "tool"] == [
        "gone",
        "gone",
        messages[7]["content"],
        messages[9]["content"],
    ]
    assert [one for one in found if one["role"] != "tool"] == [one for one in messages if one["role"] != "tool"]


def test_nothing_is_discarded_twice_or_for_a_longer_placeholder(compact, history):
    policy = DiscardToolResults(keep=1)
    once = compact(policy, history(4))
    assert compact(policy, once) is None
    assert compact(policy, history(4, result="short")) is None


def test_an_image_is_discarded_whatever_its_text(compact, history):
    messages = history(2)
    messages[3]["content"] = [{"type": "image_url", "image_url": {"url": "data:image/png;base64,AA"}}]
    assert compact(DiscardToolResults(keep=1, placeholder="gone"), messages)[3]["content"] == "gone"


@pytest.mark.parametrize(
    ("options", "tokens", "acts"),
    [
        ({"max_prompt_tokens": 500}, 500, False),
        ({"max_prompt_tokens": 500}, 501, True),
        ({"max_prompt_share": 0.5}, 5000, False),
        ({"max_prompt_share": 0.5}, 5001, True),
        ({"max_prompt_tokens": 500, "max_prompt_share": 0.9}, 501, True),
    ],
)
def test_the_limit_is_a_number_of_tokens_or_a_share_of_the_context(compact, history, options, tokens, acts):
    found = compact(DiscardToolResults(keep=0, **options), history(2), prompt_tokens=tokens)
    assert (found is not None) == acts
