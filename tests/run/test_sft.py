"""Supervised fine-tuning from config to checkpoints: reported, repeated, resumed, refused, on what a run sampled."""

import contextlib
import json
import shutil
import sqlite3
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from agentrl_core import FineTuner, Trainer
from agentrl_core.cli import main
from agentrl_core.errors import ConfigError, DataError, RunError, UsageError
from agentrl_core.models import tiny
from agentrl_core.run import resume
from agentrl_core.run.events import RunEvents
from agentrl_core.training.fine_tuning import Tuner

WORDS = ("ab", "cd", "ef", "gh")


def chat(number):
    word = WORDS[number % 4]
    return {
        "messages": [
            {"role": "user", "content": f"Say {number % 3 + 1} times {word}."},
            {"role": "assistant", "content": f"{word} " * (number % 3 + 1)},
        ]
    }


QUESTION = {"role": "user", "content": " ".join(map(str, range(99)))}
LONG = {"messages": [QUESTION, {"role": "assistant", "content": "y"}]}
"""Whose prompt alone is longer than the context."""


def write(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


@pytest.fixture
def config(tmp_path, monkeypatch):
    """Make a config; sections given change its options."""
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "train.jsonl", map(chat, range(24)))
    write(tmp_path / "eval.jsonl", map(chat, range(24, 30)))

    def make(**sections):
        made = {
            "model": {"use": "tiny", "size": "0.1M", "vocab_size": 300, "context_length": 64},
            "data": {"train": "train.jsonl"},
            "trainer": {"steps": 8, "batch_size": 6, "lr": 1e-2, "save_steps": 3, "warmup_steps": 2},
            "trackers": ["jsonl"],
        }
        for name, values in sections.items():
            made[name] = {**made.get(name, {}), **values} if isinstance(values, dict) else values
        return made

    return make


def events(summary, name):
    lines = (Path(summary.directory) / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    return [event for event in map(json.loads, lines) if event["event"] == name]


def weights(summary, step):
    return load_file(Path(summary.directory) / "checkpoints" / f"step-{step}" / "model.safetensors")


def same(first, second):
    return [bool((first[name] == second[name]).all()) for name in first]


def test_the_loss_falls_on_chats_that_were_never_shown_too(config):
    summary = FineTuner(config(name="falls", data={"eval": {"new": "eval.jsonl"}}, eval={"every": 4})).train()
    losses = [event["metrics"]["loss/value"] for event in events(summary, "step_finished")]
    assert losses[-1] < 0.6 * losses[0]
    assert [report.step for report in summary.evals] == [0, 4, 8]
    before, _, after = (report.losses["new"] for report in summary.evals)
    assert after < 0.6 * before
    assert (summary.status, summary.steps, summary.version, summary.llm_calls) == ("finished", 8, 8, 0)
    assert sorted(path.name for path in (Path(summary.directory) / "checkpoints").iterdir()) == [
        "step-3",
        "step-6",
        "step-8",
    ]
    (started,) = events(summary, "run_started")
    assert started["command"] == "sft"


def test_a_step_reports_what_it_took(config):
    summary = FineTuner(config(name="told", trainer={"steps": 1, "batch_size": 24})).train()
    (step,) = events(summary, "step_finished")
    metrics = step["metrics"]
    assert metrics["batch/rows"] == 24
    assert metrics["batch/merge_ratio"] > 2  # two chats in three begin like others
    assert metrics["loss/lr"] == pytest.approx(1e-2 / 2)
    assert metrics["train/epoch"] == 1
    assert {"loss/tokens", "loss/grad_norm", "train/tokens_per_s", "time/step_s"} <= metrics.keys()


def test_equal_seeds_give_equal_bits_and_others_do_not(config):
    runs = {"a": 0, "b": 0, "c": 1}
    ends = [weights(FineTuner(config(name=name, seed=seed)).train(), 8) for name, seed in runs.items()]
    assert all(same(ends[0], ends[1]))
    assert not all(same(ends[0], ends[2]))


def test_an_interrupted_run_ends_as_one_that_never_stopped(config, monkeypatch):
    whole = FineTuner(config(name="whole", data={"eval": "eval.jsonl"})).train()
    step, taken = Tuner.step, []

    def broken(tuner):
        taken.append(1)
        if len(taken) == 6:
            raise KeyboardInterrupt
        return step(tuner)

    with monkeypatch.context() as patch:
        patch.setattr(Tuner, "step", broken)
        with pytest.raises(KeyboardInterrupt, match=r"after step 5, which is saved.* agentrl runs resume broken"):
            FineTuner(config(name="broken", data={"eval": "eval.jsonl"})).train()
    resumed = resume(Path("runs/broken"))
    assert resumed.steps == 8
    assert all(same(weights(whole, 8), weights(resumed, 8)))
    optimizers = [
        torch.load(Path(summary.directory) / "checkpoints/step-8/optimizer.pt")["state"] for summary in (whole, resumed)
    ]
    for index, state in optimizers[0].items():
        assert all(torch.equal(state[name], optimizers[1][index][name]) for name in state)
    assert resumed.evals[-1].losses == whole.evals[-1].losses
    with pytest.raises(UsageError, match=r"finished: 8 of 8 steps"):
        resume(Path("runs/broken"))
    assert resume(Path("runs/broken"), ["trainer.steps=9"]).steps == 9


def test_a_store_without_its_log_knows_every_step_of_a_checkpoint(config, tmp_path, monkeypatch):
    save, found = Tuner.save, []

    def looking(tuner, folder, step, version, *, writer):
        copy = shutil.copy(folder.parents[1] / "agentrl.db", tmp_path / f"{step}.db")
        with contextlib.closing(sqlite3.connect(copy)) as db:
            found.append((step, *db.execute("SELECT max(step) FROM steps").fetchone()))
        save(tuner, folder, step, version, writer=writer)

    monkeypatch.setattr(Tuner, "save", looking)
    FineTuner(config(name="flushed", trainer={"steps": 2, "save_steps": 1})).train()
    assert found == [(1, 1), (2, 2)]


def test_epochs_count_passes_over_the_data(config):
    made = config(name="passes", trainer={"epochs": 2, "batch_size": 16})
    del made["trainer"]["steps"]
    summary = FineTuner(made).train()
    assert summary.steps == 4
    assert events(summary, "run_started")[0]["config"]["trainer"]["steps"] == 4
    with pytest.raises(ConfigError, match="give either steps or epochs, found both"):
        FineTuner(config(trainer={"epochs": 2})).train()


@pytest.mark.parametrize(
    ("sections", "said"),
    [
        ({"rollout": {"group_size": 4}}, "rollout: only for `agentrl run`"),
        ({"workflow": "agent.py:Agent"}, "workflow: only for `agentrl run`"),
        ({"trainer": {"max_logprob_gap": 1.0}}, "trainer.max_logprob_gap: only for `agentrl run`"),
        ({"trainer": {"epoch": 1}}, r"trainer.epoch: unknown option \(did you mean epochs\?\)"),
        ({"lr": 0.1}, r"lr: unknown option \(did you mean trainer.lr\?\)"),
        ({"data": {"train": "none.jsonl"}}, r"data.train: .*none\.jsonl: cannot read"),
        ({"loss": "grpo"}, r"loss: GRPO .*use cross_entropy"),
        ({"loss": {"use": "cross_entropy", "horizon": 3}}, "horizon"),
        ({"model": "tiny"}, "model: expected a section"),
    ],
)
def test_what_cannot_work_is_refused_before_anything_starts(config, sections, said):
    with pytest.raises((ConfigError, RunError), match=said):
        FineTuner(config(**sections)).train()
    assert not Path("runs").exists()


def test_no_parser_of_tool_calls_is_needed(config, tmp_path):
    tiny.build(tmp_path / "model", size="0.1M", vocab_size=300, seed=0, conversations=[chat(0)])
    with (tmp_path / "model/chat_template.jinja").open("a", encoding="utf-8") as file:
        file.write("{# [TOOL_CALLS] #}")
    made = config(plugins={"block": ["agentrl-parsers"]}, trainer={"steps": 1})
    assert FineTuner(made | {"model": {"path": "model"}}).train().steps == 1


def test_rows_that_cannot_be_trained_are_all_named(config, tmp_path):
    write(tmp_path / "train.jsonl", [chat(0), LONG, chat(1), LONG])
    said = r"train\.jsonl:2: \d+ tokens, more than .* 64\n.*train\.jsonl:4: .*\ndata\.overlong: drop leaves out rows"
    with pytest.raises(DataError, match=said):
        FineTuner(config(name="long")).train()


@pytest.fixture
def notices(monkeypatch):
    """Return the messages of runs to a person, without those about loading."""
    said = []

    def notice(_events, message):
        if not message.startswith("loading "):
            said.append(message)

    monkeypatch.setattr(RunEvents, "notice", notice)
    return said


def test_rows_that_are_too_long_are_left_out_and_told(config, tmp_path, notices):
    rows = [chat(number) for number in range(20)]
    write(tmp_path / "short.jsonl", rows)
    for place in range(6):
        rows.insert(2 * place, LONG)
    write(tmp_path / "train.jsonl", rows)
    write(tmp_path / "eval.jsonl", [LONG, chat(24)])
    trainer = {"steps": None, "epochs": 1}
    FineTuner(config(name="base", data={"train": "short.jsonl"}, trainer={"steps": 1})).train()
    made = config(data={"train": "short.jsonl"}, trainer=trainer)
    made["model"] = {"path": "runs/base/checkpoints/step-1"}
    expected = FineTuner(made | {"name": "fewer"}).train()
    assert notices == []
    made["data"] = {"train": "train.jsonl", "eval": {"new": "eval.jsonl"}, "overlong": "drop"}
    summary = FineTuner(made | {"name": "drop"}).train()
    assert summary.steps == 4  # 20 rows of 26, six per step
    assert all(same(weights(summary, 4), weights(expected, 4)))
    told = [
        "data.train: 6 of 26 rows left out, longer than the model's 64 tokens: lines 1, 3, 5, 7, 9 and 1 more",
        "held-out set new: 1 of 2 rows left out, longer than the model's 64 tokens: line 1",
    ]
    assert notices == told
    with pytest.raises(UsageError, match="finished: 4 of 4 steps"):
        resume(Path("runs/drop"))
    assert resume(Path("runs/drop"), ["trainer.epochs=2"]).steps == 8
    assert notices == [*told, *told, "resumed after step 4"]


def test_rows_may_be_cut_and_a_set_must_keep_some(config, tmp_path, notices):
    answer = {"role": "assistant", "content": " ".join(map(str, range(99)))}
    cut = {"messages": [{"role": "user", "content": "Count."}, answer]}
    write(tmp_path / "train.jsonl", [cut, LONG, chat(0), cut])
    data = {"overlong": "truncate"}
    made = config(name="cut", data=data, trainer={"steps": 1, "batch_size": 4})
    (step,) = events(FineTuner(made).train(), "step_finished")
    assert step["metrics"]["batch/rows"] == 3
    assert notices == [
        "data.train: 1 of 4 rows left out, nothing is trained within the model's 64 tokens: line 2",
        "data.train: 2 of 4 rows cut at the model's 64 tokens: lines 1, 4",
    ]
    write(tmp_path / "eval.jsonl", [LONG])
    with pytest.raises(DataError, match=r"held-out set eval: each of its 1 rows is longer .* truncate leaves none"):
        FineTuner(config(name="none", data={"eval": "eval.jsonl", **data})).train()


def test_what_a_run_sampled_is_what_is_trained(project, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    sampled = Trainer(project(name="sampled", trainer={"steps": 1})).train()
    database = str(Path(sampled.directory) / "agentrl.db")
    assert main(["trace", "export", database, "--best-of-group", "2", "-o", str(tmp_path / "best.jsonl")]) == 0
    assert capsys.readouterr().err.startswith("4 rows of 4 records")
    rows = [json.loads(line) for line in (tmp_path / "best.jsonl").read_text(encoding="utf-8").splitlines()]
    assert all(row["messages"][-1]["role"] == "assistant" for row in rows)
    config = {
        "name": "tuned",
        "model": project()["model"],
        "data": {"train": "best.jsonl"},
        "trainer": {"steps": 3, "batch_size": 4, "lr": 1e-3, "warmup_steps": 0},
        "trackers": ["jsonl"],
    }
    steps = [event["metrics"] for event in events(FineTuner(config).train(), "step_finished")]
    assert steps[0]["loss/tokens"] == sum(end - start for row in rows for start, end in row["spans"])
    by_engine = mean_sampled_logprob(database, {row["record"] for row in rows})
    assert steps[0]["loss/value"] == pytest.approx(-by_engine, abs=1e-4)  # the engine's own logprobs of these tokens
    assert steps[-1]["loss/value"] < steps[0]["loss/value"]
    write(tmp_path / "best.jsonl", [row | {"tokenizer": "other"} for row in rows])
    with pytest.raises(DataError, match=r"best\.jsonl:1: its token ids belong to another tokenizer .*exact_ids: false"):
        FineTuner(config | {"name": "other"}).train()
    from_text = config | {"name": "text", "data": {"train": "best.jsonl", "exact_ids": False}}
    assert FineTuner(from_text).train().status == "finished"


def mean_sampled_logprob(database, wanted):
    import asyncio

    from agentrl_core.stores.sqlite import SQLiteStore

    store = SQLiteStore.read(Path(database))
    episodes = [asyncio.run(store.episode(record)) for record in wanted]
    asyncio.run(store.close())
    values = [value for episode in episodes for item in episode.interactions for value in item.logprobs]
    return sum(values) / len(values)
