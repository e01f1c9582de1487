"""Overrides change single options, later ones win, and lists are reached by index."""

import pytest

from agentrl_core.config import load
from agentrl_core.config.component import Component
from agentrl_core.errors import ConfigError


@pytest.fixture
def refused(write):
    def message_of(text, *overrides):
        with pytest.raises(ConfigError) as caught:
            load(write(text), overrides)
        return str(caught.value)

    return message_of


def test_overrides_win_over_the_file_and_later_ones_over_earlier(run_config):
    run = run_config("trainer: {lr: 1, steps: 5}", "trainer.lr=2", "trainer.lr=3e-1", "seed=7")
    assert (run.trainer.lr, run.trainer.steps, run.seed) == (0.3, 5, 7)


def test_sections_that_the_file_lacks_are_made(run_config):
    run = run_config("", "rollout.agent.turn_discount=0.5", "warm_start.data=demos.jsonl", "loss.clip=0.3")
    assert run.rollout.agent.turn_discount == 0.5
    assert run.warm_start.data == "demos.jsonl"
    assert run.loss == Component("grpo", {"clip": 0.3})


def test_a_section_is_merged_and_a_list_replaced(run_config):
    run = run_config("loss: {use: grpo, a: 1, b: {c: 1}}", "loss={use: grpo, b: {d: 2}, e: {}}", "trackers=[curve]")
    assert run.loss == Component("grpo", {"a": 1, "b": {"c": 1, "d": 2}, "e": {}})
    assert run.trackers == (Component("curve"),)


def test_a_bare_name_in_the_file_becomes_a_section(run_config):
    run = run_config("loss: minirl\ntrackers: [console]\n", "loss.clip=0.3", "trackers.0.level=2")
    assert run.loss == Component("minirl", {"clip": 0.3})
    assert run.trackers == (Component("console", {"level": 2}),)


def test_the_same_name_on_the_command_line_keeps_the_options(run_config):
    assert run_config("loss: {clip: 0.1}", "loss=grpo").loss == Component("grpo", {"clip": 0.1})


@pytest.mark.parametrize(
    ("text", "overrides", "loss"),
    [
        ("loss: {use: grpo, clip: 0.1}", ["loss=minirl"], Component("minirl")),
        ("loss: {clip: 0.1}", ["loss=minirl"], Component("minirl")),  # of the default, grpo
        ("loss: {use: grpo, clip: 0.1}", ["loss={use: minirl, decay: 1}"], Component("minirl", {"decay": 1})),
        ("loss: {use: grpo, clip: 0.1}", ["loss.decay=1", "loss.use=minirl"], Component("minirl", {"decay": 1})),
        ("loss: {use: grpo, clip: 0.1}", ["loss=minirl", "loss.decay=1"], Component("minirl", {"decay": 1})),
    ],
)
def test_another_component_starts_without_the_options_of_the_files(run_config, text, overrides, loss):
    assert run_config(text, *overrides).loss == loss


def test_options_left_out_with_their_component_are_noted(write):
    loaded = load(
        write(
            "trackers: [console, {use: wandb, project: a}]\nworkflow: {use: a.B, x: 1, y: 2}\ndata: tasks.jsonl\n",
            complete=True,
        ),
        ["trackers.1.use=curve", "workflow=a.C"],
    )
    assert loaded.run.workflow == Component("a.C")
    assert loaded.run.trackers == (Component("console"), Component("curve"))
    again = "to use an option again, name it on the command line"
    left = "leaves out trackers.1.project (config.yaml:1), set for wandb"
    both = "leaves out workflow.x, workflow.y (config.yaml:2), set for a.B"
    assert loaded.notes == (
        f"command line: trackers.1.use=curve: {left}; {again}",
        f"command line: workflow=a.C: {both}; {again}",
    )


def test_workflow_kwargs_apply_to_the_workflow_of_the_command_line(write):
    text = "workflow_kwargs: {temperature: 0.5, nested: {a: 1}}\nworkflow: {use: a.B, x: 1}\ndata: tasks.jsonl\n"
    loaded = load(write(text, complete=True), ["workflow=a.C", "workflow_kwargs.top=1"])
    assert loaded.run.workflow == Component("a.C", {"temperature": 0.5, "nested": {"a": 1}, "top": 1})
    assert loaded.where("workflow").startswith("command line: workflow=a.C")


def test_nothing_takes_an_optional_part_away(run_config):
    assert run_config("warm_start: {data: demos.jsonl}", "warm_start=null").warm_start is None


def test_an_index_changes_or_appends_an_item(run_config):
    run = run_config("trackers: [console, jsonl]", "trackers.1.use=curve", "trackers.2=jsonl", "trackers.2.x=1")
    assert run.trackers == (Component("console"), Component("curve"), Component("jsonl", {"x": 1}))


def test_an_index_reaches_into_the_default_list(run_config):
    run = run_config("", "trackers.0.level=2", "filters.1=other")
    assert run.trackers == (Component("console", {"level": 2}), Component("jsonl"), Component("curve"))
    assert run.filters == (Component("zero_variance"), Component("other"))


def test_an_index_outside_of_the_list_is_refused(refused):
    assert refused("trackers: [console]", "trackers.2.use=x") == (
        "command line: trackers.2.use=x: trackers.2.use: expected an index from 0 to 1 into the list, found 2"
    )
    assert "found name" in refused("trackers: [console]", "trackers.name=x")


def test_a_value_that_is_no_section_cannot_be_entered(refused):
    assert refused("trainer: {lr: 1}", "trainer.lr.x=2") == (
        "command line: trainer.lr.x=2: trainer.lr.x: lr is 1 (config.yaml:1), not a section"
    )


def test_a_file_on_the_command_line_is_found_from_the_working_directory(write, tmp_path):
    (tmp_path / "recipe").mkdir()
    (tmp_path / "recipe" / "config.yaml").write_text("data: {train: a.jsonl, eval: b.jsonl}\nworkflow: x\n")
    (tmp_path / "b.jsonl").touch()
    write()
    path = "recipe/config.yaml"
    assert load(path, ["data.eval=b.jsonl"]).run.data.eval == str(tmp_path / "b.jsonl")
    assert load(path, ["data.eval={seen: b.jsonl}"]).run.data.eval == {"seen": str(tmp_path / "b.jsonl")}
    assert load(path, ["data.eval=c.jsonl"]).run.data.eval == "c.jsonl"
    assert load(path).run.data.eval == "b.jsonl"


def test_a_model_on_the_command_line_takes_the_place_of_the_files(run_config):
    builder = "model: {use: tiny, layers: 2, dtype: bfloat16}"
    model = run_config(builder, "model.path=/models/qwen").model
    assert (model.path, model.use, model.options, model.dtype) == ("/models/qwen", None, {}, "bfloat16")
    model = run_config("model: {path: /models/qwen}", "model.use=tiny", "model.layers=3").model
    assert (model.path, model.use, model.options) == (None, "tiny", {"layers": 3})


def test_two_models_on_the_command_line_are_refused(refused):
    assert "expected either path or use, found both" in refused("", "model.path=x", "model.use=tiny")
