"""Checks of requests before engines take them."""

from __future__ import annotations

import pytest

from agentrl_core.engines.jobs import check_request
from agentrl_core.errors import EngineError
from agentrl_core.types import GenerateRequest, Sampling

_VOCABULARY = 10


def _checked(*ids: int) -> int:
    request = GenerateRequest(request_id="r", prompt_ids=ids, sampling=Sampling(max_tokens=4))
    return check_request(request, context_length=100, vocab_size=_VOCABULARY)


def test_all_ids_of_the_model_may_be_in_a_prompt():
    assert _checked(*range(_VOCABULARY)) == _VOCABULARY + 4


@pytest.mark.parametrize("token", [-1, _VOCABULARY, 2**31, 2**32 - 1, 2**32, 2**70])
def test_ids_that_the_model_does_not_have_end_the_run(token):
    with pytest.raises(EngineError, match=rf"from {min(token, 0)} to {max(token, 5)}, the model knows 0 to 9"):
        _checked(0, token, 5)
