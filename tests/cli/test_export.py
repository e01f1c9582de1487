"""agentrl trace export --format: files for audits and other tools."""

import asyncio
import json
import stat

import attrs
import pytest

from agentrl_core.data.export.episodes import read_episodes
from agentrl_core.stores.sqlite import SQLiteStore
from agentrl_core.types import Outcome

KEY = "sk-agentrl-" + "k" * 32


def rows(path):
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def test_whole_episodes_equal_those_in_the_store(agentrl, make_run, tmp_path):
    folder = make_run("calm-otter")
    done = agentrl("trace", "export", "calm-otter", "--format", "jsonl", "--all", "-o", "episodes.jsonl")
    assert (done.code, done.out, done.err) == (0, "", "2 rows of 2 records\n")
    path = tmp_path / "episodes.jsonl"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    store = SQLiteStore.read(folder / "agentrl.db")
    for item in read_episodes(path):
        assert item.episode == asyncio.run(store.episode(item.episode.record.id))
        assert item.task in asyncio.run(store.tasks("calm-otter"))
    asyncio.run(store.close())


@pytest.mark.parametrize(
    ("form", "count"), [("jsonl", 1), ("chat", 2), ("atif", 2), ("agentrl", 1 + 1 + 5 + 2), ("parquet", 1)]
)
def test_a_format_has_the_chosen_records_alone(agentrl, make_run, tmp_path, form, count):
    make_run("calm-otter", reward=0.75)
    if form == "parquet":
        pytest.importorskip("pyarrow", reason="55 MB: pip install 'agentrl-core[parquet]' to test this format")
    done = agentrl("trace", "export", "calm-otter", "--min-reward", "0.5", "--format", form, "-o", "out")
    assert (done.code, done.err) == (0, f"{count} rows of 1 records\n")
    assert stat.S_IMODE((tmp_path / "out").stat().st_mode) == 0o600
    if form != "parquet":
        assert len(rows(tmp_path / "out")) == count


def test_trajectories_of_a_run_are_valid_in_a_file_and_in_a_folder(agentrl, make_run, tmp_path):
    atif = pytest.importorskip("atif", reason="atif is a dependency of the tests: pip install atif")
    make_run("calm-otter")
    assert agentrl("trace", "export", "calm-otter", "--format", "atif", "-o", "harbor/").code == 0
    files = sorted((tmp_path / "harbor").iterdir())
    assert [path.name for path in files] == ["calm-otter-aaaa.0.json", "calm-otter-aaaa.1.json"]
    assert stat.S_IMODE(files[0].stat().st_mode) == 0o600
    assert stat.S_IMODE((tmp_path / "harbor").stat().st_mode) == 0o700
    first, second = (atif.Trajectory.model_validate_json(path.read_text(encoding="utf-8")) for path in files)
    assert [step.source for step in first.steps] == ["system", "user", "agent", "agent", "agent"]
    walk = first.steps[2]
    assert [call.arguments for call in walk.tool_calls] == [{"to": "north"}, {"to": "east"}]
    assert [item.content for item in walk.observation.results] == ["a wall\x1b[2J"]
    assert walk.observation.results[0].source_call_id == "c"
    assert first.steps[3].metrics.extra["policy_versions"] == [[3, 2], [4, 2]]
    assert [step.is_copied_context for step in second.steps[:4]] == [True] * 4
    assert second.extra["record"]["rewards"] == {"call-4": 1.0}
    printed = agentrl("trace", "export", "calm-otter", "--format", "atif").out.splitlines()
    assert [json.loads(line) for line in printed] == [json.loads(path.read_text(encoding="utf-8")) for path in files]


@pytest.mark.parametrize("form", ["jsonl", "chat", "atif", "agentrl", "parquet"])
def test_no_format_has_a_sessions_key(agentrl, make_run, tmp_path, form):
    if form == "parquet":
        pytest.importorskip("pyarrow", reason="55 MB: pip install 'agentrl-core[parquet]' to test this format")
    folder = make_run("calm-otter")
    store = SQLiteStore(path=folder / "agentrl.db")

    async def add():
        episode = await store.episode("calm-otter-aaaa")
        record = attrs.evolve(episode.record, id="leak", sample_index=1)
        call = attrs.evolve(
            episode.interactions[0], id="leak-0", record_id="leak", messages=({"role": "user", "content": KEY},)
        )
        await store.add_record(attrs.evolve(record, outcome=Outcome.RUNNING))
        await store.add_interaction("calm-otter", call)
        await store.finish_record(record)
        await store.close()

    asyncio.run(add())
    assert agentrl("trace", "export", "calm-otter", "--format", form, "-o", "out").code == 0
    content = (tmp_path / "out").read_bytes()
    if form == "parquet":
        import pyarrow.parquet

        content = str(pyarrow.parquet.read_table(tmp_path / "out").to_pylist()).encode()
    assert b"leak" in content
    assert b"kkkk" not in content


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--all",), "--all: demonstrations are made of scored episodes only"),
        (("--all", "--format", "chat", "--min-reward", "1"), "--all takes every record; leave out --min-reward"),
        (("--format", "parquet"), "--format parquet is no text; name its file with -o FILE"),
        (("--format", "chat", "-o", "folder/"), "-o folder/ is a folder; --format chat writes one file"),
    ],
)
def test_options_that_exclude_each_other_are_refused(agentrl, make_run, options, said):
    make_run("calm-otter")
    refused = agentrl("trace", "export", "calm-otter", *options)
    assert refused.code == 2
    assert said in refused.err


def test_a_lone_surrogate_is_written_as_its_escape_also_to_standard_output(agentrl, make_run):
    store = SQLiteStore(path=make_run("calm-otter") / "agentrl.db")
    asyncio.run(said(store, "bad \udc80 byte"))
    done = agentrl("trace", "export", "calm-otter", "--format", "jsonl", "--all")
    assert done.code == 0
    assert "bad \\udc80 byte" in done.out
    (last,) = json.loads(done.out.splitlines()[-1])["interactions"]
    assert last["messages"][0]["content"] == "bad \udc80 byte"


async def said(store, text):
    """A record with one call, which was sent this text."""
    episode = await store.episode("calm-otter-aaaa")
    await store.add_record(attrs.evolve(episode.record, id="last", outcome=Outcome.RUNNING, started_at=500.0))
    messages = ({"role": "user", "content": text},)
    call = attrs.evolve(episode.interactions[0], id="last-call", record_id="last", messages=messages)
    await store.add_interaction("calm-otter", call)
    await store.close()
