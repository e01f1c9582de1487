"""A config file and overrides become a RunConfig, or one message with a line for each problem."""

import re

import pytest

from agentrl_core.config import load, parse
from agentrl_core.config.component import Component
from agentrl_core.config.schema import RunConfig
from agentrl_core.errors import ConfigError


def problems_of(action, *arguments, **options):
    with pytest.raises(ConfigError) as caught:
        action(*arguments, **options)
    return str(caught.value).splitlines()


def test_a_full_config_is_structured(run_config):
    run = run_config("""
        name: calm-otter
        seed: 3
        model: {use: tiny, layers: 2, dtype: bfloat16}
        warm_start: {data: demos.jsonl, steps: 140}
        sampling: {temperature: 1, max_tokens: 256}
        rollout: {group_size: 4, agent: {turn_discount: 0.9}}
        filters: []
        loss: {use: minirl, clip: 0.2, schedule: {kind: linear, steps: [1, 2]}}
        trainer: {lr: 4e-4, betas: [0.9, 0.98]}
        trackers: [console, {use: jsonl, flush: true}]
    """)
    assert run.name == "calm-otter"
    assert (run.model.use, run.model.options, run.model.dtype) == ("tiny", {"layers": 2}, "bfloat16")
    assert run.warm_start.steps == 140
    assert run.sampling.temperature == 1.0
    assert isinstance(run.sampling.temperature, float)
    assert (run.rollout.group_size, run.rollout.agent.turn_discount) == (4, 0.9)
    assert run.filters == ()
    assert run.loss == Component("minirl", {"clip": 0.2, "schedule": {"kind": "linear", "steps": [1, 2]}})
    assert (run.trainer.lr, run.trainer.betas) == (4e-4, (0.9, 0.98))
    assert run.trackers == (Component("console"), Component("jsonl", {"flush": True}))
    assert (run.data.train, run.workflow) == ("tasks.jsonl", Component("my_module.MyAgent"))


def test_what_is_not_set_has_its_default(run_config):
    assert run_config() == RunConfig(
        data=parse({"data": "tasks.jsonl", "workflow": "x"}).data, workflow=Component("my_module.MyAgent")
    )


def test_a_section_whose_options_are_commented_out_has_its_defaults(run_config):
    assert run_config("trainer:\n  # lr: 1\nloss:\ntrackers:\n") == run_config()


def test_a_component_without_a_name_is_the_default_one(run_config):
    assert run_config("loss: {clip: 0.3}").loss == Component("grpo", {"clip": 0.3})


@pytest.mark.parametrize(
    ("given", "expected"),
    [("eval.jsonl", "eval.jsonl"), ("{heldout: a.jsonl, seen: b.jsonl}", {"heldout": "a.jsonl", "seen": "b.jsonl"})],
)
def test_held_out_tasks_are_one_file_or_several_by_name(write, given, expected):
    path = write(f"data: {{train: a.jsonl, eval: {given}}}\nworkflow: x\n", complete=True)
    assert load(path).run.data.eval == expected


def test_all_problems_are_reported_at_once_with_their_places(write):
    path = write("""
        rollout:
          group_sise: 8
          agent: {mode: inlin}
        trainer:
          steps: "8"
          lr: true
          warmup_steps: -1
          betas: [0.9]
        plugins: {block: numpy}
        group_size: 4
        loss: 5
        model: tiny
        filters: [zero_variance, {clip: 1}, 7]
        eval: {tasks: 2.0}
    """)
    assert problems_of(load, path, ["trainer.updates=0", "seed=x"]) == [
        "config.yaml:3: rollout.group_sise: unknown option (did you mean group_size?)",
        (
            "config.yaml:4: rollout.agent.mode: expected inline or subproc or online, "
            'found the text "inlin" (did you mean inline?)'
        ),
        'config.yaml:6: trainer.steps: expected a whole number, found the text "8"',
        "config.yaml:7: trainer.lr: expected a number, found true",
        "config.yaml:8: trainer.warmup_steps: expected a number of at least 0, found -1",
        "config.yaml:9: trainer.betas: expected a list of 2, found 1",
        'config.yaml:10: plugins.block: expected a list, found the text "numpy"',
        "config.yaml:11: group_size: unknown option (did you mean rollout.group_size?)",
        "config.yaml:12: loss: expected a name or a section {use: NAME, …}, found 5",
        'config.yaml:13: model: expected a section {path: FOLDER} or {use: NAME, …}, found the text "tiny"',
        "config.yaml:14: filters.1.use: missing: the name of the component",
        "config.yaml:14: filters.2: expected a name or a section {use: NAME, …}, found 7",
        "config.yaml:15: eval.tasks: expected a whole number, found 2.0",
        "command line: trainer.updates=0: trainer.updates: expected a number above 0, found 0",
        'command line: seed=x: seed: expected a whole number, found the text "x"',
    ]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("name: 2026", "name: expected a text, found 2026; put it in quotes: '2026'"),
        ("name: ../x", "name: expected letters, digits, '.', '_' and '-', the first a letter or a digit, found '../x'"),
        ("name: .hidden", "name: expected letters"),
        ("seed: -1", "seed: expected a whole number from 0 to 2**63 - 1, found -1"),
        ("output_dir: ''", "output_dir: expected a text that is not empty, found ''"),
        ("output_dir:", "output_dir: expected a text, found nothing"),
        ("trainer: 5", "trainer: expected a section of options, found 5"),
        ("trainer: {lr: .nan}", "trainer.lr: expected a number, found nan"),
        ("trainer: {lr: .inf}", "trainer.lr: expected a number, found inf"),
        ("trainer: {betas: [0.9, 1.5]}", "trainer.betas: expected two numbers from 0 to below 1, found (0.9, 1.5)"),
        ("trainer: {betas: [0.9, x]}", 'trainer.betas.1: expected a number, found the text "x"'),
        (
            "rollout: {group_size: 1}",
            "rollout.group_size: expected at least rollout.min_group_size, 2, found 1",
        ),
        ("sampling: {max_tokens: 0}", "sampling.max_tokens: expected a number above 0, found 0"),
        ("gateway: {port: 65536}", "gateway.port: expected a port from 0 to 65535, found 65536"),
        ("data: {train: a, evil: b}", "data.evil: unknown option (did you mean eval?)"),
        (
            "data: {train: a, eval: 3}",
            "data.eval: expected a name or a section {use: NAME, …} or a section or a text or null, found 3",
        ),
        (
            "data: {train: a, eval: {x: [1]}}",
            "data.eval.x: expected a text or a name or a section {use: NAME, …}, found a list",
        ),
        ("data: {train: a, shuffle: on}", 'data.shuffle: expected true or false, found the text "on"'),
        ("data: {train: ''}", "data.train: expected a text that is not empty, found ''"),
        ("workflow: {use: 5}", "workflow.use: expected a text, found 5; put it in quotes: '5'"),
        (
            "data: {train: a, default_scorer: {use: numeric, rel: 0.1}}",
            "data.default_scorer: expected a text, found a section; write its options under `scorers:`",
        ),
        ("workflow: ''", "workflow.use: expected a name, found an empty text"),
        ("workflow: {turns: 5}", "workflow.use: missing: the name of the component"),
        (
            "model: {path: x, size: 0.3M}",
            "model.size: unknown option; without `use` there is no builder that could take it",
        ),
        ("model: {path: x, dtpye: float32}", "model.dtpye: unknown option (did you mean dtype?)"),
        ("model: {path: x, use: tiny}", "model.use: expected either path or use, found both"),
        ("model: {use: tiny, dtype: int8}", 'model.dtype: expected float32 or bfloat16, found the text "int8"'),
        ("warm_start: {steps: 3}", "warm_start.data: missing"),
        ("warm_start: demos.jsonl", 'warm_start: expected a section of options, found the text "demos.jsonl"'),
        ("gconfig: {shuffle: true}", "gconfig.shuffle: unknown option (did you mean data.shuffle?)"),
    ],
)
def test_each_problem_says_what_was_found_and_expected(write, text, problem):
    required = {"data": "tasks.jsonl", "workflow": "x"}
    lines = [text, *(f"{key}: {value}" for key, value in required.items() if not text.startswith(key))]
    found = problems_of(load, write("\n".join(lines), complete=True))
    assert len(found) == 1
    assert found[0].startswith(f"config.yaml:1: {problem}")


@pytest.mark.parametrize("text", ["", "# nothing\n", "seed: 1\n", "data:\n"])
def test_online_agents_need_no_tasks_in_the_config(write, text):
    assert load(write(text, complete=True)).run.data.train is None


@pytest.mark.parametrize(("text", "kind"), [("- a\n", "a list"), ("just words\n", 'the text "just words"')])
def test_a_file_that_holds_no_options_is_refused(write, text, kind):
    assert problems_of(load, write(text, complete=True)) == [
        f"config.yaml: expected `option: value` lines, found {kind}"
    ]


def test_problems_of_the_yaml_and_of_the_options_are_reported_together(write):
    assert problems_of(load, write("seed: 1\nseed: 2\nsede: 3\n")) == [
        "config.yaml:2: seed is given twice, first at config.yaml:1",
        "config.yaml:3: sede: unknown option (did you mean seed?)",
    ]


def test_placeholders_are_problems_wherever_they_stand_and_hide_what_else_is_wrong_there(write):
    path = write("""
        model: {path: <YOUR_MODEL>}
        trainer: {steps: <YOUR_STEPS>}
        num_generations: <YOUR_N>
        db_connection_string: <YOUR_MONGO_URL>
        engine: {use: x, hosts: [a, "http://<YOUR_HOST_2>:80"], options: {deep: <YOUR_X>}}
        output_dir: <your_dir>
    """)
    assert problems_of(load, path, ["data.train=<YOUR_DATA>"]) == [
        f"{place}: {key}: <{name}> is a placeholder; replace it with your own value"
        for place, key, name in [
            ("config.yaml:2", "model.path", "YOUR_MODEL"),
            ("config.yaml:3", "trainer.steps", "YOUR_STEPS"),
            ("config.yaml:4", "num_generations", "YOUR_N"),
            ("config.yaml:5", "db_connection_string", "YOUR_MONGO_URL"),
            ("config.yaml:6", "engine.hosts.1", "YOUR_HOST_2"),
            ("config.yaml:6", "engine.options.deep", "YOUR_X"),
            ("command line: data.train=<YOUR_DATA>", "data.train", "YOUR_DATA"),
        ]
    ]


def test_the_name_comes_from_the_option_then_the_override_then_the_file(run_config):
    assert run_config("name: a").name == "a"
    assert run_config("name: a", "name=b").name == "b"
    assert run_config("name: a", "name=b", name="c").name == "c"
    assert run_config("name: a", name="").name == "a"


def test_a_name_that_is_no_folder_name_is_refused(write):
    assert problems_of(load, write(), name="a/b") == [
        (
            "command line: --name a/b: name: expected letters, digits, '.', '_' and '-', "
            "the first a letter or a digit, found 'a/b'"
        )
    ]


@pytest.mark.parametrize(("cwd", "path"), [(".", "config.yaml"), ("..", "{}/config.yaml"), ("deep", "../config.yaml")])
def test_relative_paths_start_from_the_folder_of_the_file_wherever_they_are_used(
    write, tmp_path, monkeypatch, cwd, path
):
    write()
    (tmp_path / "deep").mkdir()
    monkeypatch.chdir(tmp_path / cwd)
    found = load(path.format(tmp_path.name)).base_dir
    assert found.is_absolute()
    assert found.samefile(tmp_path)


def test_where_names_the_place_of_an_option_or_of_the_section_around_it(write):
    loaded = load(write("# comment\nloss:\n  clip: 1\n  deep: {x: [a, b]}\nseed: 1\n"), ["trainer.lr=1"])
    assert loaded.where("loss.clip") == "config.yaml:3: loss.clip"
    assert loaded.where("loss") == "config.yaml:2: loss"
    assert loaded.where("loss.other") == "config.yaml:2: loss.other"
    assert loaded.where("loss.deep.x.1") == "config.yaml:4: loss.deep.x.1"
    assert loaded.where("trainer.lr") == "command line: trainer.lr=1: trainer.lr"
    assert loaded.where("engine") == "config.yaml: engine"
    assert loaded.places("loss")("clip") == "config.yaml:3: loss.clip"
    assert loaded.places("loss")("") == "config.yaml:2: loss"


def test_python_data_is_checked_like_a_file(tmp_path):
    run = parse({"data": {"train": tmp_path / "a.jsonl"}, "workflow": "x", "trainer": {"betas": (0.5, 0.5)}})
    assert (run.data.train, run.trainer.betas) == (str(tmp_path / "a.jsonl"), (0.5, 0.5))
    assert problems_of(parse, {"data": "a", "workflow": "x", "sead": 1}, ["trainer.lr=x"]) == [
        "config: sead: unknown option (did you mean seed?)",
        'command line: trainer.lr=x: trainer.lr: expected a number, found the text "x"',
    ]
    assert problems_of(parse, {"data": {1: "a"}}) == ["config: expected text as keys, found 1"]


def test_classes_check_what_python_code_gives_them():
    with pytest.raises(ValueError, match=re.escape("no option named use")):
        Component("x", {"use": "y"})
