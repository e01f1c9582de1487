"""What a tree's attention is asked for by transformers."""

import pytest
import torch
from torch import nn
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from agentrl_core.errors import TrainingError
from agentrl_core.training.attention.tree import IMPLEMENTATION, Tree

HEADS = torch.zeros(1, 2, 5, 4)


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({"softcap": 30.0}, "softcap"),
        ({"s_aux": torch.zeros(2)}, "s_aux"),
        ({"position_bias": torch.zeros(1, 2, 5, 5)}, "position_bias"),
        ({"dropout": 0.1}, "dropout"),
        ({"sliding_window": 4}, "a sliding window of 4 tokens, but a sequence has 5"),
    ],
)
def test_what_changes_scores_is_refused_and_named(arguments, named):
    tree = Tree(lambda query, key, value, scale: query, depth=5)
    with pytest.raises(TrainingError, match=f"Linear .*{named}"):
        ALL_ATTENTION_FUNCTIONS[IMPLEMENTATION](nn.Linear(1, 1), HEADS, HEADS, HEADS, None, tree=tree, **arguments)


def test_a_window_that_no_sequence_reaches_is_told():
    tree = Tree(lambda query, key, value, scale: query * scale, depth=5)
    for window, smallest in ((9, 9), (7, 7), (8, 7)):
        ALL_ATTENTION_FUNCTIONS[IMPLEMENTATION](
            nn.Linear(1, 1), HEADS, HEADS, HEADS, None, tree=tree, sliding_window=window
        )
        assert tree.window == smallest
