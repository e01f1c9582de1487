"""Option names of other trainers that are no alias are answered with what to write here, which is tried."""

import json

import pytest

from agentrl_core.config import load, parse, parse_as
from agentrl_core.config.aliases import RENAMED
from agentrl_core.config.foreign_hints import FOREIGN, counterpart
from agentrl_core.config.sft import SftConfig
from agentrl_core.errors import ConfigError
from agentrl_core.run.checks import check_config

EPS_CLIP_HIGHER = " (from AReaL); write loss.clip_higher: 0.08 (added to loss.clip, so 0.28 is 0.08)"
NEEDED = {"data": "tasks.jsonl", "workflow": "single_turn"}


def refusal(*sections, name):
    mapping = {name: 1}
    for section in reversed(sections):
        mapping = {section: mapping}
    with pytest.raises(ConfigError) as caught:
        parse({**NEEDED, **mapping})
    return str(caught.value)


@pytest.mark.parametrize("name", FOREIGN)
def test_what_to_write_here_is_a_setting_that_a_run_accepts(write, tmp_path, name):
    (tmp_path / "tasks.jsonl").write_text(json.dumps({"id": "a", "query": "Say ab.", "answer": "ab"}) + "\n")
    path = write(
        "data: {train: tasks.jsonl, default_scorer: exact_match}\nworkflow: single_turn\nmodel: {use: tiny}\n",
        complete=True,
    )
    key, _, value = FOREIGN[name].here.partition(": ")
    assert check_config(load(path, [f"{key}={value}"]))[0] == []


@pytest.mark.parametrize("name", FOREIGN)
def test_a_name_is_answered_wherever_it_is_written(name):
    said = f"{name}: unknown option (from {FOREIGN[name].trainers}); write {FOREIGN[name].here}"
    assert said in refusal("rollout", name=name)
    assert said in refusal("actor", name=name)
    if (name,) not in RENAMED:
        assert said in refusal(name=name)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "actor: {eps_clip: 0.2, eps_clip_higher: 0.28}",
            f"actor.eps_clip_higher: unknown option{EPS_CLIP_HIGHER}",
        ),
        ("actor: {adv_norm: {mean_level: batch}}", "actor.adv_norm: unknown option (from AReaL); write advantage: {"),
        (
            "drop_zero_advantage: true",
            "drop_zero_advantage: unknown option (from AgentCPM's AgentRL); write filters: [zero_variance] (the",
        ),
        ("trainer: {learning_rate: 1.0}", "trainer.learning_rate: unknown option (did you mean trainer.lr?)"),
        ("actor: {epsilon: 0.2}", "actor.epsilon: unknown option (did you mean loss.clip?)"),
        ("actor: {type: local}", "actor.type: unknown option"),
    ],
)
def test_the_place_is_named_with_the_answer(write, text, said):
    with pytest.raises(ConfigError) as caught:
        load(write(text))
    (line,) = str(caught.value).splitlines()
    assert line.startswith(f"config.yaml:1: {said}")


def test_the_options_of_a_component_are_answered_too(write):
    problems, _ = check_config(load(write("loss: {use: ppo, eps_clip_higher: 0.28}\nmodel: {use: tiny}\n")))
    assert [line for line in problems if "loss" in line] == [
        f"config.yaml:1: loss.eps_clip_higher: unknown option of ppo{EPS_CLIP_HIGHER}"
    ]


def test_a_fine_tuning_is_not_told_of_what_it_has_not():
    with pytest.raises(ConfigError) as caught:
        parse_as(SftConfig, {"data": "a.jsonl", "trainer": {"ppo_n_minibatches": 4}})
    assert str(caught.value) == "config: trainer.ppo_n_minibatches: unknown option"


def test_what_is_no_name_of_others_has_no_answer():
    assert counterpart("clip") == counterpart("group_size") == counterpart("type") == ""
