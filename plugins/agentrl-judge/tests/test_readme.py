"""What the README shows works."""

import asyncio
import re
from pathlib import Path

import pytest
import yaml

from agentrl_core.plugins.options import bind
from agentrl_judge.agent_config import read_agent_config
from agentrl_judge.judge import Judge

README = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")


def block(language, start):
    return next(
        text
        for text in re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL)
        if text.lstrip("# ").startswith(start)
    )


def test_the_config_names_judges():
    section = yaml.safe_load(block("yaml", "config.yaml"))["scorers"]["judge"]
    assert section.pop("use") == "judge"
    assert [model.settings.model for model in Judge(**section).panel.models] == ["Qwen/Qwen3-32B", "gpt-4.1"]


def test_the_agent_config_is_read(tmp_path):
    (tmp_path / "agent_config.yml").write_text(block("yaml", "agent_config.yml"), encoding="utf-8")
    found = read_agent_config(tmp_path / "agent_config.yml")
    assert (found.models[0].api_key_env, found.call_timeout_s) == ("JUDGE_API_KEY", 60.0)


def test_the_example_judges():
    names = {}
    exec(block("python", "from"), names)
    score = asyncio.run(names["example"]())
    assert (score.value, len(score.details["judge"]["calls"])) == (1.0, 2)


def test_every_option_is_told_with_its_default():
    options = bind(Judge, {}, name="judge", where="", injected={})
    assert options == {}  # none is needed
    known = set(Judge.__init__.__kwdefaults__) - {"config_dir"}
    rows = re.findall(r"^\| (`.*?) \|", README, re.MULTILINE)
    assert {name for row in rows for name in re.findall(r"`(\w+)`", row)} == known


@pytest.mark.parametrize(("option", "default"), [("timeout_s", 120), ("max_chars", 20000), ("max_concurrency", 16)])
def test_told_defaults_are_true(option, default):
    assert f"| `{option}` | {default} |" in README
    assert Judge.__init__.__kwdefaults__[option] == default
