"""What the loss decides, and the policy that it refers to, from a run's start to its resumption."""

import json
from pathlib import Path

import pytest

from agentrl_core.errors import ConfigError
from agentrl_core.run.directory import RunDirectory
from agentrl_core.run.trainer import Trainer, resume
from agentrl_core.trackers.jsonl import FILE_NAME, read_events
from agentrl_core.training.learner import Learner

KL = [{"use": "kl", "beta": 0.5}]


def metrics_of(summary):
    events = read_events(Path(summary.directory) / FILE_NAME)
    return [event["metrics"] for event in events if event["event"] == "step_finished"]


def test_a_run_keeps_the_config_with_what_its_loss_has_chosen(project):
    config = project(name="short", loss="dr_grpo", sampling={"max_tokens": 6}, trainer={"steps": 1})
    summary = Trainer(config).train()
    kept, _ = RunDirectory.open(Path(summary.directory)).read_snapshot()
    assert kept["loss"] == {"use": "dr_grpo", "aggregation": "constant", "unit": "record", "horizon": 6}
    assert kept["advantage"] == {"use": "grpo", "std": False}


def test_a_run_resumed_with_another_loss_takes_what_that_one_brings_along(project):
    sampling = {"max_tokens": 6}
    for name, said in (("silent", {}), ("said", {"unit": "interaction"})):
        config = project(name=name, loss={"use": "grpo", **said}, sampling=sampling, trainer={"steps": 1})
        directory = Path(Trainer(config | ({"advantage": "none"} if said else {})).train().directory)
        resume(directory, ["trainer.steps=2", "loss=dr_grpo"])
        kept, _ = RunDirectory.open(directory).read_snapshot()
        assert kept["loss"] == {"use": "dr_grpo", "aggregation": "constant", "unit": "record", "horizon": 6}
        assert kept["advantage"] == (
            {"use": "none"} if said else {"use": "grpo", "std": False}
        )  # what the config said stays


def test_a_resumed_run_refers_to_the_policy_before_the_first_step(project):
    config = project(name="held", loss={"use": "grpo", "corrections": KL}, trainer={"steps": 1})
    summary = Trainer(config).train()
    resumed = resume(Path(summary.directory), ["trainer.steps=2"])
    first, second = metrics_of(resumed)
    assert first["loss/kl_reference"] == pytest.approx(0, abs=1e-6)
    assert second["loss/kl_reference"] > 1e-6


@pytest.fixture
def warm(project):
    """A config with a warm start."""
    chat = {"messages": [{"role": "user", "content": "Say a."}, {"role": "assistant", "content": "aaa"}]}
    Path("chats.jsonl").write_text(json.dumps(chat) + "\n", encoding="utf-8")
    return lambda **sections: project(name="warm", warm_start={"data": "chats.jsonl", "steps": 3}, **sections)


def test_after_a_warm_start_the_reference_is_what_that_made(warm):
    config = warm(loss={"use": "grpo", "corrections": KL}, trainer={"steps": 2, "keep_last": 1})
    summary = Trainer(config).train()
    assert not (Path(summary.directory) / "checkpoints/step-0").exists()
    first, second = metrics_of(resume(Path(summary.directory), ["trainer.steps=3"]))[::2]
    assert first["loss/kl_reference"] == pytest.approx(0, abs=1e-6)
    assert second["loss/kl_reference"] > 1e-6


def test_a_run_killed_between_warm_start_and_first_step_has_its_reference(warm, monkeypatch):
    config = warm(loss={"use": "grpo", "corrections": KL}, trainer={"steps": 1})
    save = Learner.save

    def killed(learner, directory, **place):
        save(learner, directory, **place)
        if directory.name == "step-0":
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Learner, "save", killed)
        with pytest.raises(KeyboardInterrupt, match="agentrl runs resume warm"):
            Trainer(config).train()
    (first,) = metrics_of(resume(Path("runs/warm")))
    assert first["loss/kl_reference"] == pytest.approx(0, abs=1e-6)


def test_a_resumed_run_cannot_refer_to_a_policy_that_it_did_not_keep(warm, policy_dir):
    summary = Trainer(warm(loss="grpo", trainer={"steps": 1})).train()
    directory = Path(summary.directory)
    kept = (directory / "config.json").read_text(encoding="utf-8")
    later = ["trainer.steps=2", 'loss={"use": "grpo", "corrections": ["kl"]}']
    with pytest.raises(ConfigError, match=r"loss: needs the policy after the warm start .* with loss\.reference"):
        resume(directory, later)
    assert (directory / "config.json").read_text(encoding="utf-8") == kept
    assert resume(directory, [*later, f"loss.reference={policy_dir}"]).steps == 2


def test_a_correction_that_cannot_work_stops_before_anything_starts(project):
    config = project(name="twice", loss={"use": "ppo", "corrections": ["truncated_is"]})
    with pytest.raises(ConfigError, match="PPO and TruncatedIS each multiply"):
        Trainer(config).train()
    assert not Path("runs/twice").exists()


OWN = """
class Own:
    needs = frozenset()
    {}

    def loss(self, batch):
        raise AssertionError("nothing starts")
"""


@pytest.mark.parametrize(
    ("brought", "said"),
    [
        (
            'aggregation_defaults = {"aggregation": "sum"}',
            r"its `aggregation_defaults` are .* loss\.aggregation: expected",
        ),
        (
            "aggregation_defaults = property(dict)",
            "its `aggregation_defaults` is <property .*expected a mapping, as an",
        ),
        ('advantage_default = {"use": "grp"}', r"its `advantage_default` names grp: advantage: no adv"),
        ("advantage_default = None", "its `advantage_default` is None; expected a mapping"),
    ],
)
def test_what_a_loss_brings_along_is_not_blamed_on_the_config(project, brought, said):
    Path("own.py").write_text(OWN.format(brought), encoding="utf-8")
    with pytest.raises(ConfigError, match=f"loss: 'own.py:Own': {said}"):
        Trainer(project(name="own", loss="own.py:Own")).train()
    assert not Path("runs").exists()
