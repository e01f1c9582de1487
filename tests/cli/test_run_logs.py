"""agentrl runs logs: the last entries of every process, by time, and what comes after."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrl_core.cli.run_logs import _Tail


def entry(second, text, level="INFO"):
    return f"2026-01-01 00:00:{second:02},000 {level} agentrl_core.run: {text}\n"


@pytest.fixture
def logged(make_run):
    """Make a run with logs: role -> text."""

    def make(**logs):
        folder = make_run("calm-otter")
        (folder / "logs").mkdir()
        for role, text in logs.items():
            (folder / "logs" / f"{role}_0.log").write_text(text, encoding="utf-8")
        return folder

    return make


def test_the_last_entries_of_one_process_are_printed_as_they_are(agentrl, logged):
    logged(run=entry(1, "first") + entry(2, "stopped", "ERROR") + "Traceback (most recent call last):\n  here\n")
    out = agentrl("runs", "logs", "calm-otter", "-n", "1").out
    assert out == entry(2, "stopped", "ERROR") + "Traceback (most recent call last):\n  here\n"


def test_several_processes_are_merged_by_time_with_their_names(agentrl, logged):
    logged(run=entry(1, "a") + entry(3, "c"), sample=entry(2, "b"))
    lines = agentrl("runs", "logs", "calm-otter").out.splitlines()
    assert [line.split(" | ")[0] for line in lines] == ["run_0", "sample_0", "run_0"]
    assert [line[-1] for line in lines] == ["a", "b", "c"]
    one = agentrl("runs", "logs", "calm-otter", "--role", "sample").out
    assert one == entry(2, "b")


def test_a_role_has_the_logs_of_all_of_its_processes(agentrl, logged):
    folder = logged(run=entry(1, "a"))
    for number, name in enumerate(("sample-node_7_41", "sample-node8_42", "serve-node8_43")):
        (folder / "logs" / f"{name}.log").write_text(entry(number, name), encoding="utf-8")
    lines = agentrl("runs", "logs", "calm-otter", "--role", "sample").out.splitlines()
    assert [line.split(" | ")[0] for line in lines] == ["sample-node_7_41", "sample-node8_42"]
    assert agentrl("runs", "logs", "calm-otter", "--role", "train").out == entry(1, "a")


def test_each_entry_is_a_line_of_json(agentrl, logged):
    logged(run=entry(1, "a: b") + "more\n")
    (line,) = agentrl("runs", "logs", "calm-otter", "--json").out.splitlines()
    assert json.loads(line) == {
        "file": "run_0",
        "time": "2026-01-01 00:00:01,000",
        "level": "INFO",
        "logger": "agentrl_core.run",
        "message": "a: b\nmore",
    }


def test_following_an_ended_run_prints_everything_once_and_ends(agentrl, logged, write):
    folder = logged(run=entry(1, "a") + entry(2, "b") + "no end of line")
    write(folder, lambda store: store.update_run("calm-otter", status="finished"))
    assert agentrl("runs", "logs", "calm-otter", "--follow").out == entry(1, "a") + entry(2, "b") + "no end of line\n"


def test_a_role_without_a_log_is_told_with_those_that_have_one(agentrl, logged):
    logged(train="", sample="")
    result = agentrl("runs", "logs", "calm-otter", "--role", "serve")
    assert result.code == 2
    assert result.err.rstrip().endswith("has no log of serve; there are logs of sample, train")


@given(texts=st.lists(st.text(alphabet="ab \n", max_size=6), max_size=6), cuts=st.lists(st.integers(0, 400)))
def test_a_log_read_in_pieces_has_the_lines_of_the_whole_log(tmp_path_factory, texts, cuts):
    path = tmp_path_factory.mktemp("log") / "run_0.log"
    whole = "".join(entry(second, text) for second, text in enumerate(texts))
    path.write_text("", encoding="utf-8")
    tail, lines, at = _Tail(path), [], 0
    for cut in [*sorted(min(cut, len(whole)) for cut in cuts), len(whole)]:
        with path.open("a", encoding="utf-8") as file:
            file.write(whole[at:cut])
        at = cut
        lines += [line for item in tail.read(final=False) for line in item.text.split("\n")]
    lines += [line for item in tail.read(final=True) for line in item.text.split("\n")]
    assert lines == whole.split("\n")[:-1]
