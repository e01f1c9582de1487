import pytest

from agentrl_core.batching.credit import InsertionOrderCredit, TreeCredit, is_trained
from agentrl_core.errors import TrainingError
from agentrl_core.types import FinishReason

LINE = {"t1": None, "t2": "t1", "t3": "t2"}
PLANNER = {"P1": None, "S1": None, "S2": None, "P2": "P1"}
"""A planner calls two sub-agents, which see contexts of their own, and then goes on."""


def test_a_line_pays_each_turn_the_discount_once_per_later_turn(episode):
    credit = TreeCredit(turn_discount=0.5).credit(episode(LINE))
    assert credit == {"t1": 0.25, "t2": 0.5, "t3": 1.0}


def test_without_discount_everyone_gets_the_whole(episode):
    assert set(TreeCredit().credit(episode(PLANNER)).values()) == {1.0}


def test_a_sub_agent_is_paid_and_does_not_discount_its_planner(episode):
    credit = TreeCredit(turn_discount=0.9).credit(episode(PLANNER))
    assert credit == pytest.approx({"P1": 0.9, "S1": 1.0, "S2": 1.0, "P2": 1.0})


def test_a_fork_counts_the_turns_to_its_latest_descendant(episode):
    #  root - a - b      (ended second)
    #       \ c          (ended last: one turn from the root)
    tree = {"root": None, "a": "root", "b": "a", "c": "root"}
    credit = TreeCredit(turn_discount=0.5).credit(episode(tree))
    assert credit == {"root": 0.5, "a": 0.5, "b": 1.0, "c": 1.0}


def test_rewards_per_turn_add_up_along_the_tree(episode):
    #  root(0.1) - a(0.2) - b(1)
    #            \ c(-1)
    tree = {"root": None, "a": "root", "b": "a", "c": "root"}
    rewards = {"root": 0.1, "a": 0.2, "b": 1.0, "c": -1.0}
    credit = TreeCredit(turn_discount=0.5).credit(episode(tree, rewards=rewards))
    assert credit == pytest.approx({"b": 1.0, "c": -1.0, "a": 0.2 + 0.5, "root": 0.1 + 0.5 * (0.7 - 1.0)})


def test_unrelated_calls_keep_their_own_rewards_in_the_tree(episode):
    calls = episode({"a": None, "b": None}, rewards={"a": 1.0, "b": -1.0})
    assert TreeCredit().credit(calls) == {"a": 1.0, "b": -1.0}


def test_a_reward_left_out_is_zero(episode):
    credit = TreeCredit(turn_discount=0.9).credit(episode(PLANNER, rewards={"P2": 1.0}))
    assert credit == pytest.approx({"P1": 0.9, "S1": 0.0, "S2": 0.0, "P2": 1.0})


def test_insertion_order_is_areals_chain(episode):
    chain = InsertionOrderCredit(turn_discount=0.9)
    by_turn = chain.credit(episode(PLANNER, rewards={"P2": 1.0}))
    assert by_turn == pytest.approx({"P1": 0.729, "S1": 0.81, "S2": 0.9, "P2": 1.0})
    assert chain.credit(episode(PLANNER)) == pytest.approx(by_turn)


def test_calls_of_other_models_are_no_links_of_areals_chain(episode, interaction):
    calls = [
        interaction("a"),
        interaction("judge", trainable=False),
        interaction("b"),
        interaction("late", trainable=False),
    ]
    chain = InsertionOrderCredit(turn_discount=0.5)
    assert chain.credit(episode(calls)) == {"a": 0.5, "judge": 1.0, "b": 1.0, "late": 0.0}
    by_turn = chain.credit(episode(calls, rewards={"judge": 2.0, "b": 1.0}))
    assert by_turn == {"a": 1.5, "judge": 3.0, "b": 1.0, "late": 0.0}


def test_insertion_order_mixes_unrelated_calls(episode):
    calls = episode({"a": None, "b": None}, rewards={"a": 1.0, "b": -1.0})
    assert InsertionOrderCredit().credit(calls) == {"a": 0.0, "b": -1.0}


@pytest.mark.parametrize("credit", [TreeCredit(turn_discount=0.9), InsertionOrderCredit(turn_discount=0.9)])
def test_an_early_reward_survives_a_later_one(credit, episode):
    returns = credit.credit(episode({"t1": None, "t2": "t1"}, rewards={"t1": 0.5, "t2": 1.0}))
    assert returns == pytest.approx({"t1": 1.4, "t2": 1.0})


def test_a_parent_outside_the_record_is_refused(episode):
    with pytest.raises(TrainingError, match=r"record: interaction b continues a"):
        TreeCredit().credit(episode({"b": "a"}))


def test_outputs_of_others_and_aborted_ones_are_not_trained(interaction):
    assert is_trained(interaction("policy"))
    assert is_trained(interaction("cut short", finish_reason=FinishReason.LENGTH))
    assert not is_trained(interaction("upstream", trainable=False))
    assert not is_trained(interaction("aborted", finish_reason=FinishReason.ABORT))
    assert not is_trained(interaction("empty", output=()))


#  a - b - summary      (first branch: what was sampled before a compaction, and the summary)
#  n1 - n2              (second branch: from the compacted context)
COMPACTED = {"a": None, "b": "a", "summary": "b", "n1": None, "n2": "n1"}

#  root - a - b
#       \ c - d
#            \ e
FORKED = {"root": None, "a": "root", "b": "a", "c": "root", "d": "c", "e": "c"}


def test_each_sampled_token_has_the_whole_reward_by_default(episode):
    assert set(TreeCredit().credit(episode(COMPACTED)).values()) == {1.0}


def test_branches_that_share_nothing_share_the_weight_of_the_record(episode):
    assert set(TreeCredit(branches="shared").credit(episode(COMPACTED)).values()) == {0.5}


def test_an_interaction_weighs_as_much_as_the_branches_that_contain_it(episode):
    credit = TreeCredit(branches="shared").credit(episode(FORKED))
    third = 1 / 3
    assert credit == pytest.approx({"root": 1, "a": third, "b": third, "c": 2 * third, "d": third, "e": third})


def test_a_shared_weight_is_discounted_like_a_whole_one(episode):
    credit = TreeCredit(turn_discount=0.5, branches="shared").credit(episode(COMPACTED))
    assert credit == {"a": 0.125, "b": 0.25, "summary": 0.5, "n1": 0.25, "n2": 0.5}


def test_a_record_with_one_branch_is_credited_alike_by_both(episode):
    assert TreeCredit(branches="shared").credit(episode(LINE)) == TreeCredit().credit(episode(LINE))


def test_what_is_not_trained_is_no_branch(episode, interaction):
    calls = [
        interaction("a"),
        interaction("judge", prompt=(), output=(), trainable=False, upstream="judge"),
        interaction("b", parent="a"),
        interaction("lost", parent="a", finish_reason=FinishReason.ABORT),
        interaction("c"),
    ]
    credit = TreeCredit(branches="shared").credit(episode(calls))
    assert credit == {"a": 0.5, "judge": 0.0, "b": 0.5, "lost": 0.0, "c": 0.5}


def test_rewards_per_turn_are_not_shared_out(episode):
    calls = episode(COMPACTED, rewards={"summary": 0.5, "n2": 1.0})
    assert TreeCredit(branches="shared").credit(calls) == TreeCredit().credit(calls)


@pytest.mark.parametrize("branches", [1, 2, 7])
def test_the_weight_of_a_record_does_not_grow_with_its_branches(episode, branches):
    tree = {f"b{index}": None for index in range(branches)}
    assert sum(TreeCredit(branches="shared").credit(episode(tree)).values()) == pytest.approx(1)
    assert sum(TreeCredit().credit(episode(tree)).values()) == branches
