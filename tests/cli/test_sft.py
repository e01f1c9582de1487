"""agentrl sft, and agentrl trace export: what is written, what is said, what is refused."""

import asyncio
import json

import attrs
import pytest

from agentrl_core.api.stores import StepRow
from agentrl_core.data.demonstrations import load_demonstrations
from agentrl_core.stores.sqlite import SQLiteStore
from agentrl_core.types import Outcome, Record

ROWS = [
    {"messages": [{"role": "user", "content": f"Say {word}."}, {"role": "assistant", "content": word}]}
    for word in ("ab", "cd", "ef")
]
CONFIG = """\
model: {use: tiny, size: 0.1M, vocab_size: 300, context_length: 64}
data: rows.jsonl
trainer: {steps: 2, batch_size: 3, lr: 1.0e-2}
"""


@pytest.fixture
def files(tmp_path):
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS), encoding="utf-8")
    (tmp_path / "sft.yaml").write_text(CONFIG, encoding="utf-8")
    return tmp_path


def test_a_config_is_tuned_listed_and_gone_on_with(agentrl, files):
    done = agentrl("sft", "sft.yaml", "data.eval=rows.jsonl", "--name", "calm-otter")
    assert done.code == 0, done.err
    assert "held-out loss after step 0: eval " in done.out
    header = next(line for line in done.out.splitlines() if line.split()[:1] == ["step"])
    assert header.split()[2:] == ["epoch", "loss", "tokens", "grad", "norm", "lr", "merge", "tokens/s", "s/step"]
    assert "run calm-otter finished: 2 steps" in done.out
    assert "trace list" not in done.out  # there are no episodes
    (row,) = agentrl("runs", "list", "--json").json
    assert (row["name"], row["status"], row["steps"], row["reward"]) == ("calm-otter", "finished", 2, None)
    assert row["loss"] > 0
    assert f"loss {row['loss']:.3f}" in agentrl("runs", "list").out
    assert f"last loss   {row['loss']:.3f} in the last step" in agentrl("runs", "show", "calm-otter").out
    longer = agentrl("runs", "resume", "calm-otter", "trainer.steps=3")
    assert longer.code == 0, longer.err
    assert "resumed after step 2" in longer.out


def test_the_config_is_shown_and_checked(agentrl, files):
    shown = agentrl("config", "show", "--sft", "--json", "sft.yaml", "trainer.schedule=cosine").json
    assert (shown["loss"], shown["trainer"]["schedule"], shown["data"]["train_on"]) == (
        {"use": "cross_entropy", "aggregation": "token_mean", "unit": "record"},
        "cosine",
        "all",
    )
    assert agentrl("config", "check", "--sft", "sft.yaml").out == "ok\n"
    (files / "sft.yaml").write_text(f"{CONFIG}rollout: {{group_size: 4}}\n", encoding="utf-8")
    refused = agentrl("config", "check", "--sft", "sft.yaml")
    assert refused.code == 2
    assert "sft.yaml:4: rollout: only for `agentrl run`" in refused.err


def test_a_bad_row_is_named_by_its_line(agentrl, files):
    with (files / "rows.jsonl").open("a", encoding="utf-8") as file:
        file.write('{"messages": []}\n')
    refused = agentrl("sft", "sft.yaml")
    assert refused.code == 2
    assert "rows.jsonl:4: messages: expected a list of messages, found an empty list" in refused.err
    assert not (files / "runs").exists()


def test_episodes_are_exported_with_ids_spans_and_messages(agentrl, make_run, tmp_path):
    make_run("calm-otter", reward=0.75)
    done = agentrl("trace", "export", "calm-otter", "--min-reward", "0.5", "-o", "best.jsonl")
    assert (done.code, done.out) == (0, "")
    assert done.err == "2 rows of 1 records, 16 trained tokens\n"
    first, second = load_demonstrations(tmp_path / "best.jsonl")
    assert first.tokens.spans == [(10, 14, 1.0), (24, 28, 1.0), (38, 42, 1.0)]
    assert second.tokens.spans == [(38, 42, 1.0)]  # what comes before it is trained by the first row
    roles = [message["role"] for message in first.messages]
    assert roles == ["system", "user", "assistant", "tool", "assistant", "tool", "assistant"]
    printed = agentrl("trace", "export", "calm-otter")
    assert printed.out == (tmp_path / "best.jsonl").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("--min-reward", "2"), 2, "no record for these options: the highest of 1 rewards is 0.75"),
        (("--best-of-group", "0"), 2, "best-of-group"),
        (("--format", "csv"), 2, "format"),
        (("-o", "nowhere/best.jsonl"), 2, "cannot write nowhere/best.jsonl: No such file or directory"),
    ],
)
def test_an_export_that_cannot_be_is_refused(agentrl, make_run, arguments, code, said):
    make_run("calm-otter", reward=0.75)
    refused = agentrl("trace", "export", "calm-otter", *arguments)
    assert refused.code == code
    assert said in refused.err


def test_neither_keys_nor_altered_tokens_are_exported(agentrl, make_run, tmp_path):
    folder = make_run("calm-otter", reward=0.75)
    store = SQLiteStore(path=folder / "agentrl.db")
    asyncio.run(altered_record(store))
    done = agentrl("trace", "export", "calm-otter", "-o", "best.jsonl")
    assert done.err.splitlines() == [
        "2 rows of 1 records, 16 trained tokens",
        "left out: cccc, whose tokens are not what the engine sampled (agentrl trace verify)",
    ]


def test_what_a_resumed_run_sampled_twice_is_exported_once(agentrl, make_run, tmp_path):
    folder = make_run("calm-otter", reward=0.75)
    asyncio.run(a_step_taken_again(SQLiteStore(path=folder / "agentrl.db")))
    done = agentrl("trace", "export", "calm-otter", "-o", "best.jsonl")
    assert done.err.splitlines() == [
        "3 rows of 2 records, 20 trained tokens",
        "left out: 1 records of steps that the run repeated when it was resumed",
    ]
    rows = map(json.loads, (tmp_path / "best.jsonl").read_text(encoding="utf-8").splitlines())
    assert {row["record"] for row in rows} == {"calm-otter-aaaa", "second"}


async def a_step_taken_again(store):
    """A step with one record, voided, and the same step with another."""
    episode = await store.episode("calm-otter-aaaa")
    for version, name in enumerate(("first", "second"), start=90):
        (group,) = await store.add_evaluation("calm-otter", "train", ["maze"], version=version)
        record = Record(id=name, run_id="calm-otter", task_id="maze", group_id=group, sample_index=1)
        await store.add_record(record)
        call = attrs.evolve(episode.interactions[0], id=f"{name}-call", record_id=name)
        await store.add_interaction("calm-otter", call)
        await store.finish_record(attrs.evolve(record, outcome=Outcome.SCORED, reward=1.0))
        await store.add_version("calm-otter", version, step=77)
        await store.add_step(
            StepRow(run_id="calm-otter", step=77, version=version, groups=[record.group_id], records=[], metrics={})
        )
        if name == "first":
            await store.void_after("calm-otter", 76)
    await store.close()


def test_an_evaluations_reward_is_not_told_as_one_to_export(agentrl, make_run):
    folder = make_run("calm-otter", reward=0.25)
    asyncio.run(an_evaluation(SQLiteStore(path=folder / "agentrl.db")))
    refused = agentrl("trace", "export", "calm-otter", "--min-reward", "0.5")
    assert "the highest of 1 rewards is 0.25" in refused.err
    assert agentrl("trace", "export", "calm-otter", "--min-reward", "0.5", "--evaluations").code == 0


async def an_evaluation(store):
    """A scored record of an evaluation."""
    episode = await store.episode("calm-otter-aaaa")
    record = Record(
        id="eval", run_id="calm-otter", task_id="maze", group_id="calm-otter-g0", sample_index=2, is_eval=True
    )
    await store.add_record(record)
    await store.add_interaction(
        "calm-otter", attrs.evolve(episode.interactions[0], id="eval-call", record_id=record.id)
    )
    await store.finish_record(attrs.evolve(record, outcome=Outcome.SCORED, reward=1.0))
    await store.close()


async def altered_record(store):
    """A scored record with a digest that its tokens do not have."""
    episode = await store.episode("calm-otter-aaaa")
    record = Record(id="cccc", run_id="calm-otter", task_id="maze", group_id="calm-otter-g0", sample_index=1)
    await store.add_record(record)
    call = attrs.evolve(episode.interactions[0], id="altered", record_id="cccc", witness="0" * 16)
    await store.add_interaction("calm-otter", call)
    await store.finish_record(attrs.evolve(record, outcome=Outcome.SCORED, reward=1.0))
    await store.close()
