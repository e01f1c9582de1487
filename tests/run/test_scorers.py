"""Scorers are built before a run starts, and may look whether they can score."""

import json
import re

import pytest
import yaml

from agentrl_core import hookimpl
from agentrl_core.config import load
from agentrl_core.config.sampling_sections import GatewayConfig
from agentrl_core.errors import ConfigError, PluginError
from agentrl_core.plugins.registry import PROGRAM
from agentrl_core.run.checks import check_config
from agentrl_core.scorers.call import normalize_scorer
from agentrl_core.scorers.table import ScorerTable, check_scorers
from agentrl_core.types import Task
from agentrl_testing import isolated_plugins


class Remote:
    """A scorer that needs something beyond this process."""

    def __init__(self, *, limit: int = 3, config_dir=None):
        self.limit, self.config_dir = limit, config_dir
        self.gateways = []

    def __call__(self, request):
        return 1.0

    async def check(self, *, gateway_url=None):
        self.gateways.append(gateway_url)
        if self.limit < 0:
            raise ConfigError("the server is away")
        return [f"limit {self.limit}"]


class Demanding(Remote):
    def __init__(self, *, server: str):
        super().__init__()


class Plugin:
    @hookimpl
    def register_scorers(self, register):
        register("remote", Remote)
        register("demanding", Demanding)
        register("plain", lambda request: 0.5)


@pytest.fixture
def registry():
    with isolated_plugins(Plugin()) as found:
        yield found


def test_a_class_is_built_and_told_the_configs_folder(registry, tmp_path):
    built = ScorerTable(registry, base_dir=tmp_path).get("remote").function
    assert (type(built), built.limit, built.config_dir) == (Remote, 3, tmp_path)


def test_a_class_that_needs_options_says_so(registry, tmp_path):
    with pytest.raises(ConfigError, match="scorer 'demanding': demanding needs the option 'server'"):
        ScorerTable(registry, base_dir=tmp_path).get("demanding")


def test_an_unknown_scorer_is_named_with_the_nearest(registry, tmp_path):
    with pytest.raises(PluginError, match=r"'remot' \(did you mean remote\?\)"):
        ScorerTable(registry, base_dir=tmp_path).get("remot")


def test_scorers_are_asked_and_their_notes_collected(registry, tmp_path):
    plain, remote = (ScorerTable(registry, base_dir=tmp_path).get(name) for name in ("plain", "remote"))
    assert check_scorers([plain, remote], GatewayConfig(port=8123)) == ["limit 3"]
    assert check_scorers([remote], GatewayConfig()) == ["limit 3"]
    assert remote.function.gateways == ["http://127.0.0.1:8123", None]  # a free port is known later only


def test_a_scorer_that_cannot_score_stops_the_run():
    with pytest.raises(ConfigError, match="the server is away"):
        check_scorers([normalize_scorer(Remote(limit=-1), "remote")], GatewayConfig())


def check(tmp_path, config, *rows):
    """Check a config of tiny parts; its problems and notes, without the folder."""
    (tmp_path / "agent.py").write_text("async def run(data): ...", encoding="utf-8")
    (tmp_path / "tasks.jsonl").write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    base = {"model": {"use": "tiny"}, "workflow": f"{tmp_path}/agent.py:run", "data": {"train": "tasks.jsonl"}}
    (tmp_path / "config.yaml").write_text(yaml.safe_dump({**base, **config}), encoding="utf-8")
    problems, notes = check_config(load(tmp_path / "config.yaml"))
    return [[line.replace(f"{tmp_path}/", "") for line in lines] for lines in (problems, notes)]


def row(name, **fields):
    return {"id": name, "query": "?", **fields}


def test_what_a_tasks_scorer_cannot_do_is_told_with_its_line(tmp_path):
    (tmp_path / "own.py").write_text("def wrong(a, b, c): ...", encoding="utf-8")
    problems, notes = check(
        tmp_path,
        {
            "scorers": {"q": {"use": "weighted", "parts": {"f1": 1}}},
            "data": {"train": "tasks.jsonl", "allow_code": True},
        },
        row("a", answer="x", scorer="f1"), row("b", answer="x", scorer="f2"), row("c", scorer="q"),
        row("d", scorer="q"), row("e", scorer="own.py:wrong"), row("f", answer="x", scorer="choice", choices=[1]),
        row("g"), row("h", answer="4", scorer="weighted"),
    )  # fmt: skip
    starts = (
        "tasks.jsonl:2: task 'b': no scorer named 'f2' (",
        "tasks.jsonl:3: task 'c': scorer 'q': scorer 'f1' needs the task's `answer` (and 1 more tasks like it)",
        "tasks.jsonl:5: task 'e': scorer 'own.py:wrong': expected score(request) or",
        "tasks.jsonl:6: task 'f': scorer 'choice': ",
        "tasks.jsonl:8: task 'h': scorer 'weighted': weighted needs the option 'parts'",
    )
    assert len(problems) == len(starts)
    for problem, start in zip(problems, starts, strict=True):
        assert problem.startswith(start)
    (note,) = notes
    assert note.startswith("tasks.jsonl: 1 tasks name no scorer (the default one, 'agentcpm', cannot be used: ")


def test_a_task_may_not_name_code_unless_the_config_allows_it(tmp_path):
    (tmp_path / "evil.py").write_text(
        f"open({str(tmp_path / 'ran')!r}, 'w').close()\ndef score(request): return 1.0", encoding="utf-8"
    )
    rows = [
        row(name, answer="x", scorer=name)
        for name in ("evil.py:score", "evil:score", "evil.score", f"{tmp_path}/evil.py:score")
    ]
    problems, _ = check(tmp_path, {}, *rows)
    assert [problem.partition(": task")[0] for problem in problems] == [f"tasks.jsonl:{line}" for line in (1, 2, 3, 4)]
    assert problems[0] == (
        "tasks.jsonl:1: task 'evil.py:score': 'evil.py:score' is code, which a task may not name; name it in the "
        "config, `scorers: {my_scorer: {use: evil.py:score}}`, and write `my_scorer` in the task, or set "
        "data.allow_code: true to trust all code that the tasks name"
    )
    assert not (tmp_path / "ran").exists()
    assert check(tmp_path, {"scorers": {"mine": {"use": "evil.py:score"}}}, row("a", scorer="mine"))[0] == []
    assert (tmp_path / "ran").exists()
    assert check(tmp_path, {"data": {"train": "tasks.jsonl", "allow_code": True}}, *rows)[0] == []


def test_tasks_that_a_data_set_brings_may_name_no_code_either(tmp_path):
    (tmp_path / "evil.py").write_text("raise SystemExit", encoding="utf-8")
    with isolated_plugins() as registry, pytest.raises(PluginError, match="is code, which a task may not name"):
        ScorerTable(registry, base_dir=tmp_path).of_task(Task(id="a", data={}, scorer="evil.py:score"))


@pytest.mark.parametrize(
    "config",
    [{}, {"scorers": {"mine": {"use": "code"}}}, {"data": {"train": "tasks.jsonl", "default_scorer": "code"}},
     {"scorers": {"mine": {"use": "gated", "gate": "f1", "then": "code"}}}],
)  # fmt: skip
def test_a_scorer_of_a_package_that_is_missing_is_told_with_the_command_that_installs_it(tmp_path, config, monkeypatch):
    rows = [row("a", answer="x", scorer="f1" if config else "code")]
    with isolated_plugins() as registry:
        monkeypatch.setattr("agentrl_core.run.checks.load_registry", lambda *_, **__: registry)
        (problem,) = check(tmp_path, config, *rows)[0]
    assert "no scorer named 'code'" in problem
    assert problem.endswith("pip install agentrl-code")


def test_what_is_wrong_with_a_defined_scorer_is_told_once_with_its_line(tmp_path):
    problems, _ = check(tmp_path, {"scorers": {"q": {"use": "regex", "pattern": "("}}}, row("a", scorer="q"))
    (problem,) = problems
    assert re.match(r"config\.yaml:\d+: scorers\.q\.pattern: regex: 'pattern' is not a valid pattern: ", problem)


def test_modules_of_the_config_register_scorers_first(tmp_path, monkeypatch):
    monkeypatch.setattr(PROGRAM, "entries", [])
    (tmp_path / "mine.py").write_text(
        "from agentrl_core import register_scorer\nregister_scorer('of_the_config', lambda a, b: 1.0)", encoding="utf-8"
    )
    rows = (row("a", answer="x", scorer="of_the_config"),)
    assert check(tmp_path, {"plugins": {"modules": ["mine.py"]}}, *rows)[0] == []
    (problem,) = check(tmp_path, {"plugins": {"modules": ["mine.py", "gone.py"]}}, *rows)[0]
    assert "plugins.modules.1: there is no file gone.py" in problem


def test_an_agents_own_module_may_register_scorers(tmp_path, monkeypatch):
    monkeypatch.setattr(PROGRAM, "entries", [])
    (tmp_path / "agent2.py").write_text(
        "from agentrl_core import register_scorer\nregister_scorer('beside', lambda a, b: 1.0)\n"
        "async def run(data): ...",
        encoding="utf-8",
    )
    found = check(tmp_path, {"workflow": "agent2.py:run"}, row("a", answer="x", scorer="beside"))
    assert found[0] == []
