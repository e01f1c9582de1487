"""Fixtures for config tests: small configs."""

import textwrap

import pytest

from agentrl_core.config import load


@pytest.fixture
def write(tmp_path, monkeypatch):
    """Write `config.yaml` into the working directory; text without data and workflow gets them at its end."""
    monkeypatch.chdir(tmp_path)

    def write_config(text="", *, complete=False):
        required = "" if complete else "data: tasks.jsonl\nworkflow: my_module.MyAgent\n"
        (tmp_path / "config.yaml").write_text(textwrap.dedent(text) + "\n" + required, encoding="utf-8")
        return "config.yaml"

    return write_config


@pytest.fixture
def run_config(write):
    """Load a config of the given text and overrides."""

    def load_run(text="", *overrides, **options):
        return load(write(text), overrides, **options).run

    return load_run
