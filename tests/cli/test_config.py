"""`agentrl config` shows what a config amounts to, and says all that is wrong with it."""

import json
import socket
import sys
from pathlib import Path

import attrs
import pytest
import yaml

from agentrl_core.cli import main
from agentrl_core.config import dump, load, parse
from agentrl_core.config.component import Component
from agentrl_core.config.invocation import pip_install
from agentrl_testing.policy import write_tokenizer

TASKS = [{"id": "a", "query": "2+2?", "answer": "4", "scorer": "exact_match"}]
AGENT = """
class Agent:
    def __init__(self, *, turns=1): ...
    async def run(self, data): return 1.0

class Engine:
    def __init__(self, **options): ...
    async def generate(self, request): yield
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder with a config, its agent, its tasks and a model."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    (tmp_path / "model").mkdir()
    write_tokenizer(tmp_path / "model")
    (tmp_path / "model" / "config.json").write_text("{}")
    (tmp_path / "agent.py").write_text(AGENT)
    write_tasks(tmp_path / "tasks.jsonl", TASKS)
    (tmp_path / "config.yaml").write_text(
        "model: {path: model}\ndata: tasks.jsonl\nworkflow: agent.py:Agent\nengine: agent.py:Engine\n"
    )
    return tmp_path


def write_tasks(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


@pytest.fixture
def agentrl(capsys):
    """Run the command line in this process: exit code, output, lines of errors."""

    def run(*arguments):
        code = main(["config", *arguments])
        captured = capsys.readouterr()
        return code, captured.out, captured.err.splitlines()

    return run


def settled(run):
    """What the default loss writes out."""
    loss = Component("grpo", {"aggregation": "token_mean", "unit": "record"})
    trainer = attrs.evolve(run.trainer, lr=1e-6)
    return attrs.evolve(run, loss=loss, advantage=Component("grpo"), trainer=trainer)


def test_show_prints_yaml_that_loads_to_the_same_config(folder, agentrl):
    overrides = ["trainer.lr=1e-6", "learning_rate=1e-6", "num_generations=4", "name=on"]
    code, output, _ = agentrl("show", "config.yaml", *overrides)
    assert code == 0
    (folder / "shown.yaml").write_text(output)
    shown, loaded = load("shown.yaml").run, settled(load("config.yaml", overrides).run)
    assert shown == loaded
    assert yaml.safe_load(output) == dump(loaded)
    assert output.index("rollout:") < output.index("group_size: 4")


def test_show_prints_json_for_machines(folder, agentrl):
    code, output, _ = agentrl("show", "--json", "config.yaml", "seed=3")
    assert code == 0
    assert parse(json.loads(output)) == settled(load("config.yaml", ["seed=3"]).run)


def test_show_tells_what_the_loss_has_chosen(folder, agentrl):
    code, output, _ = agentrl("show", "config.yaml", "loss.use=dr_grpo", "sampling.max_tokens=96")
    shown = yaml.safe_load(output)
    assert code == 0
    assert shown["loss"] == {"use": "dr_grpo", "aggregation": "constant", "unit": "record", "horizon": 96}
    assert shown["advantage"] == {"use": "grpo", "std": False}
    code, output, _ = agentrl("show", "config.yaml", "loss=rloo", "advantage.scale=2.0", "loss.unit=interaction")
    shown = yaml.safe_load(output)
    assert shown["loss"] == {"use": "rloo", "aggregation": "seq_mean_token_sum", "unit": "interaction"}
    assert shown["advantage"] == {"use": "leave_one_out", "scale": 2.0}


def test_show_prints_a_config_whose_loss_is_not_installed_as_it_is_written(folder, agentrl):
    code, output, errors = agentrl("show", "config.yaml", "loss=gropo")
    assert code == 0
    assert yaml.safe_load(output)["loss"] == {"use": "gropo"}
    assert errors[0].startswith("note: command line: loss=gropo: loss: no loss named 'gropo'")


def test_a_loss_that_lacks_its_constant_is_refused(folder, agentrl):
    code, _, errors = agentrl("check", "config.yaml", "loss=dr_grpo")
    assert code == 2
    assert "set loss.horizon, or sampling.max_tokens, its default" in errors[0]


@pytest.mark.parametrize(
    ("override", "told"),
    [
        ("loss.corrections=[{use: kll}]", "no correction named 'kll' (did you mean kl?)"),
        ("loss.corrections=[{use: kl, bata: 1}]", "unknown option of kl (did you mean beta?)"),
        ("loss.corrections=[{use: masked_is, low: 9}]", "high must be at least low"),
        ("loss.corrections=[truncated_is, masked_is]", "TruncatedIS and MaskedIS each multiply"),
        ("loss.corrections=[grpo]", "no correction named 'grpo'"),
        ("loss.reference=nowhere", "loss.reference: there is no folder nowhere"),
        ("loss.proximal=linear", "loss.proximal: expected recompute or loglinear"),
    ],
)
def test_what_stands_around_the_loss_is_checked_too(folder, agentrl, override, told):
    code, _, errors = agentrl("check", "config.yaml", override)
    assert code == 2
    assert told in errors[0]


@pytest.mark.parametrize("command", ["show", "check"])
def test_a_wrong_config_is_a_usage_error_with_all_places(folder, agentrl, command):
    code, output, errors = agentrl(command, "config.yaml", "trainer.stebs=1", "seed=x")
    assert (code, output) == (2, "")
    assert errors == [
        "error: command line: trainer.stebs=1: trainer.stebs: unknown option (did you mean steps?)",
        'command line: seed=x: seed: expected a whole number, found the text "x"',
    ]


def test_check_says_ok_to_a_config_that_could_run(folder, agentrl):
    assert agentrl("check", "config.yaml") == (0, "ok\n", [])


def test_check_names_everything_that_is_wrong_with_its_place(folder, agentrl):
    (folder / "config.yaml").write_text(
        "model: {path: nowhere}\n"
        "data: tasks.jsonl\n"
        "workflow: {use: agent.py:Agent, turms: 2}\n"
        "engine: embeded\n"
        "loss:\n"
        "  use: minirl\n"
        "  clipp: 0.1\n"
        "advantage: {use: grpo, scale: big}\n"
        "filters: [zero_varianze]\n"
        "store: {use: sqlite, paht: x}\n"
        "trackers: [console, {use: curve, evry: 2}]\n"
        "gateway: {tool_parser: hermess}\n"
    )
    code, output, errors = agentrl("check", "config.yaml")
    assert (code, output) == (2, "")
    problems = "\n".join(errors)
    assert "config.yaml:1: model.path: there is no folder nowhere; `hf download" in problems
    assert "config.yaml:3: workflow.turms: unknown option" in problems
    assert "config.yaml:4: engine: no engine named 'embeded' (did you mean embedded?)" in problems
    assert "config.yaml:7: loss.clipp: unknown option of minirl (did you mean clip?)" in problems
    assert "config.yaml:8: advantage.scale: expected a number, found" in problems
    assert "config.yaml:9: filters.0: no filter named 'zero_varianze' (did you mean zero_variance?)" in problems
    assert "config.yaml:10: store.paht: unknown option of sqlite" in problems
    assert "config.yaml:11: trackers.1.evry: unknown option of curve (did you mean every?)" in problems
    assert "config.yaml:12: gateway.tool_parser: no tool parser named 'hermess' (did you mean hermes?)" in problems
    assert len(errors) == 9


def test_check_misses_the_tasks_where_a_run_plays_them_itself(folder, agentrl):
    lines = (folder / "config.yaml").read_text().splitlines()
    (folder / "config.yaml").write_text("\n".join(line for line in lines if not line.startswith("data")))
    missing = "data.train: the tasks are missing; set a JSONL file: `data: {train: tasks.jsonl}`"
    assert missing in agentrl("check", "config.yaml")[2][0]
    assert agentrl("check", "config.yaml", "workflow=", "rollout.agent.mode=online")[:2] == (0, "ok\n")


def test_check_says_what_an_engine_needs_and_what_it_takes(folder, agentrl):
    engine = "engine={use: sglang"
    one = "engine: sglang: expected exactly one of the options 'url', 'servers_file' and 'launch'"
    assert one in agentrl("check", "config.yaml", engine + "}")[2][0]
    assert one in agentrl("check", "config.yaml", engine + ", url: 'http://127.0.0.1:1', servers_file: x}")[2][0]
    wrong = agentrl("check", "config.yaml", engine + ", url: 'http://127.0.0.1:1', weights_dir: 3}")[2][0]
    assert "weights_dir: expected a path, found 3" in wrong
    assert agentrl("check", "config.yaml", engine + ", url: 'http://127.0.0.1:1'}")[0] == 0
    assert agentrl("check", "config.yaml", engine + ", url: ['http://127.0.0.1:1', 'http://127.0.0.1:2']}")[0] == 0


@pytest.mark.parametrize("server", ["sglang", "vllm"])
def test_check_says_which_package_has_an_engine(folder, agentrl, server):
    old = f"engine={{use: openai_compatible, server: {server}, url: 'http://127.0.0.1:1'}}"
    problem = agentrl("check", "config.yaml", old)[2][0]
    assert f"server: {server}" in problem
    assert f"is now {{use: {server}, …}}" in problem
    assert f"pip install agentrl-{server}" in problem
    absent = agentrl(
        "check",
        "config.yaml",
        f"engine={{use: {server}, url: 'http://127.0.0.1:1'}}",
        f"plugins.block=[agentrl-{server}]",
    )
    assert f"agentrl-{server} 0.1.0, which is blocked by plugins.block" in absent[2][0]


def test_check_notes_that_the_key_of_an_upstream_is_not_set(folder, agentrl, monkeypatch):
    upstream = "gateway.upstreams={judge: {url: 'https://host/v1', api_key_env: KEY_OF_THE_JUDGE}}"
    monkeypatch.delenv("KEY_OF_THE_JUDGE", raising=False)
    output = agentrl("check", "config.yaml", upstream)[1]
    assert "judge.api_key_env: the environment variable KEY_OF_THE_JUDGE is not set\nok" in output
    monkeypatch.setenv("KEY_OF_THE_JUDGE", "sk-1")
    assert agentrl("check", "config.yaml", upstream)[1] == "ok\n"


def test_check_reads_the_tasks_and_their_scorers(folder, agentrl):
    write_tasks(folder / "bad.jsonl", [{"id": "a"}])
    write_tasks(
        folder / "unscored.jsonl",
        [
            {"id": "b", "query": "q", "scorer": "exact_match"},
            {"id": "c", "query": "q", "scorer": "exact_mach", "answer": "1"},
        ],
    )
    code, _, errors = agentrl(
        "check", "config.yaml", "data.train=bad.jsonl", "data.eval={x: unscored.jsonl, y: gone.jsonl}"
    )
    problems = "\n".join(errors)
    assert code == 2
    assert "bad.jsonl:1: expected `query` (a text) or `messages` (a list), found neither" in problems
    assert "task 'c': no scorer named 'exact_mach' (did you mean exact_match?)" in problems
    assert "unscored.jsonl:1: task 'b': scorer 'exact_match' needs the task's `answer`" in problems
    assert ": data.eval.y: no such task file: gone.jsonl" in problems


def test_check_notes_tasks_that_only_the_workflow_can_score(folder, agentrl, monkeypatch):
    monkeypatch.setenv("AGENTRL_LOAD_PLUGINS", "")
    write_tasks(folder / "tasks.jsonl", [{"id": "a", "query": "q"}, {"id": "b", "query": "q"}])
    code, output, _ = agentrl("check", "config.yaml")
    assert code == 0
    assert output == (
        "note: tasks.jsonl: 2 tasks name no scorer: the workflow must return their rewards, or set "
        "data.default_scorer: exact_match (or numeric, for numbers), or name a `scorer` in the task\nok\n"
    )
    code, output, _ = agentrl("check", "config.yaml", "data.default_scorer=numeric")
    assert code == 0
    assert output == (
        "note: tasks.jsonl:1: task 'a': scorer 'numeric' needs the task's `answer` (and 1 more tasks like it): "
        "the workflow must return their reward\nok\n"
    )


@pytest.mark.parametrize(
    ("override", "told"),
    [
        ("data.default_scorer=exact_mach", ["no scorer named 'exact_mach' (did you mean exact_match?)"]),
        ("data.default_scorer=nobody/judge", ["no package 'nobody' that plugs into agentrl is installed"]),
        ("data.default_scorer=judge", ["no scorer named 'judge'", "; INSTALL"]),
        ("data.default_scorer=agentcpm", ["no scorer named 'agentcpm'", "; INSTALL"]),
    ],
)
def test_check_refuses_a_default_scorer_that_is_named_and_not_there(folder, agentrl, monkeypatch, override, told):
    monkeypatch.setenv("AGENTRL_LOAD_PLUGINS", "")
    code, output, errors = agentrl("check", "config.yaml", override)
    assert (code, output) == (2, "")
    assert len(errors) == 1
    assert errors[0].startswith(f"error: command line: {override}: data.default_scorer: no ")
    install = pip_install("agentrl-judge")  # as it is typed in this folder, not in that of the test run
    assert [part for part in told if part.replace("INSTALL", install) not in errors[0]] == []


@pytest.mark.parametrize("workflow", ["single_turn", "multi_turn"])
def test_check_refuses_a_workflow_without_rewards_where_no_scorer_gives_them(folder, agentrl, monkeypatch, workflow):
    monkeypatch.setenv("AGENTRL_LOAD_PLUGINS", "")
    write_tasks(folder / "tasks.jsonl", [{"id": "a", "query": "q", "answer": "b"}, {"id": "c", "query": "q"}])
    code, _, errors = agentrl("check", "config.yaml", f"workflow={workflow}")
    assert code == 2
    assert errors[0] == (
        "error: tasks.jsonl: 2 tasks name no scorer: set data.default_scorer: exact_match (or numeric, for numbers), "
        "or name a `scorer` in the task"
    )
    code, _, errors = agentrl("check", "config.yaml", f"workflow={workflow}", "data.default_scorer=exact_match")
    assert (code, len(errors)) == (2, 1)
    assert "task 'c': scorer 'exact_match' needs the task's `answer`" in errors[0]
    (folder / "reward.py").write_text("def right(answer, reference): return 1.0\n")
    assert agentrl("check", "config.yaml", "workflow={use: multi_turn, reward_fn: reward.py:right}")[0] == 0


def test_check_finds_a_port_that_is_in_use(folder, agentrl):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        code, _, errors = agentrl("check", "config.yaml", f"gateway.port={port}")
    assert code == 2
    assert errors == [
        (
            f"error: command line: gateway.port={port}: gateway.port: port {port} on 127.0.0.1 is in use; choose "
            "another gateway.port, or 0 for any free one"
        )
    ]
    assert agentrl("check", "config.yaml", f"gateway.port={port}") == (0, "ok\n", [])


@pytest.mark.parametrize("command", [("check",), ("check", "--sft")])
def test_check_refuses_a_device_that_this_machine_lacks(folder, agentrl, command):
    if "--sft" in command:
        (folder / "chats.jsonl").write_text('{"messages": [{"role": "assistant", "content": "a"}]}\n')
        (folder / "config.yaml").write_text("model: {path: model}\ndata: {train: chats.jsonl}\n")
    code, _, errors = agentrl(*command, "config.yaml", "trainer.device=cuda:99")
    assert code == 2
    assert "trainer.device: cuda:99 is not there: this machine has" in errors[0]
    assert agentrl(*command, "config.yaml", "model.dtype=bfloat16") == (0, "ok\n", [])


def test_check_notes_variables_that_nothing_reads(folder, agentrl, monkeypatch):
    monkeypatch.setenv("AGENTRL_BLOCK_PLUGIN", "agentrl-judge")
    monkeypatch.setenv("AGENTRL_KEY_OF_MINE", "a-key-of-more-than-thirty-two-characters")
    code, output, _ = agentrl("check", "config.yaml", "gateway.admin_key_env=AGENTRL_KEY_OF_MINE")
    assert (code, output) == (
        0,
        (
            "note: the environment variable AGENTRL_BLOCK_PLUGIN is unknown and has no effect (did you mean "
            "AGENTRL_BLOCK_PLUGINS?)\nok\n"
        ),
    )


def test_show_tells_the_learning_rate_of_a_loaded_and_of_a_built_model(folder, agentrl):
    for override, rates in (("seed=0", (1e-6, 2e-5)), ("model={use: tiny}", (4e-4, 3e-3))):
        shown = yaml.safe_load(agentrl("show", "config.yaml", override, "warm_start={data: demos.jsonl}")[1])
        assert (shown["trainer"]["lr"], shown["warm_start"]["lr"]) == rates


@pytest.mark.parametrize(
    ("override", "problem"),
    [
        ("model={use: tiny, sise: 1M}", "model.sise: unknown option of tiny (did you mean size?)"),
        ("model.use=tinny", "model: no model named 'tinny' (did you mean tiny?)"),
        ("data.train=jsonll", "data.train: no dataset named 'jsonll' (did you mean jsonl?)"),
        ("data.eval=jsonll", "data.eval: no dataset named 'jsonll' (did you mean jsonl?)"),
        ("data.train={use: jsonl, size: 3}", "data.train.size: unknown option of jsonl, which has none"),
        ("data.train={use: tasks.jsonl, size: 3}", "data.train.size: a task file has no options; leave it out"),
        ("data.eval={held: {use: jsonl, size: 3}}", "data.eval.held.size: unknown option of jsonl, which has none"),
        ("loss.aggregation=mean", "loss"),
        ("engine.anything=1", ""),
    ],
)
def test_check_looks_up_what_an_override_names(folder, agentrl, override, problem):
    code, _, errors = agentrl("check", "config.yaml", override)
    assert code == (2 if problem else 0)
    assert len(errors) == bool(problem)
    assert all(problem in error for error in errors)


def test_check_asks_for_a_policy(folder, agentrl):
    (folder / "config.yaml").write_text("data: tasks.jsonl\nworkflow: agent.py:Agent\nengine: agent.py:Engine\n")
    assert agentrl("check", "config.yaml")[2] == [
        "error: config.yaml: model: the model is missing; set `path: FOLDER` of a model, or `use: tiny`"
    ]


def test_the_recipe_of_the_quickstart_loads():
    recipe = Path(__file__).parents[2] / "cookbook" / "quickstart" / "config.yaml"
    assert load(recipe).base_dir == recipe.parent
