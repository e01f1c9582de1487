import torch

from agentrl_core.training.offload import Offload


def test_a_learner_that_rests_between_steps_learns_the_same(learner, sampler, weights):
    """On a CPU the tensors move within main memory: what matters is that each is found again where it was."""
    trainer = {"max_logprob_gap": 9.0, "offload": "all"}
    resting, awake = (learner(dtype="bfloat16", trainer=trainer) for _ in range(2))
    resting._offload = Offload("cpu")
    for step in (1, 2, 3):
        groups = sampler.groups(seed=step)
        for one in (resting, awake):
            one.step(groups, step=step, version=9)
        moved = {id(tensor): tensor.data_ptr() for tensor in resting._idle_tensors()}
        assert len(moved) == 4 * len(resting._policy.masters.parameters)
        for _ in range(2):  # a second time it has nothing to do
            resting.release()
        assert all(tensor.data_ptr() != moved[id(tensor)] for tensor in resting._idle_tensors())
        assert all(master.grad is None for master in resting._policy.masters.parameters)
    expected, found = weights(awake), weights(resting)
    assert all(torch.equal(expected[name], found[name]) for name in expected)
    copies = awake._policy.masters.copies
    assert all(torch.equal(copies[name], master) for name, master in resting._policy.masters.copies.items())


def test_a_resting_learner_is_saved_as_it_is(learner, sampler, weights, tmp_path):
    one = learner()
    one._offload = Offload("cpu")
    one.step(sampler.groups(), step=1, version=0)
    one.release()
    one.save(tmp_path / "step-1", step=1, version=1)
    again = learner()
    again.restore(tmp_path / "step-1")
    one.reclaim()
    for learning in (one, again):
        learning.step(sampler.groups(seed=1), step=2, version=9)
    expected, found = weights(one), weights(again)
    assert all(torch.equal(expected[name], found[name]) for name in expected)


def test_by_default_nothing_moves(learner):
    assert learner(trainer={"offload": "optimizer"})._offload is None
