"""Each key of `browse_agent` in an `agent_config.yml`: its meaning, its default, wrong values, and secrets."""

import pytest

from agentrl_core.errors import ConfigError
from agentrl_judge.agent_config import read_agent_config
from agentrl_tool_middleware.browse_settings import (
    EXTRA_BODY,
    BrowseSettings,
    Upstream,
    browse_options,
    read_browse_agent,
)

MODEL = "{base_url: 'http://localhost:38889', model: qwen, api_key: sk-secret}"
WHOLE = """
browse_agent:
  models:
    - api_key: "${BROWSE_KEY}"
      base_url: "http://localhost:38889/v1"
      model: "${BROWSE_MODEL}"
    - {api_key: sk-secret, base_url: "https://api.example.org", model: large}
  max_retries: 1
  retry_delay: 0.5
  timeout: 60
  max_prompt_length: 5000
  min_prompt_length: 100
  enable_logging: true
  browse_tools: [fetch_url, visit, execute_code]
  default_purpose: {execute_code: Tell what the program printed.}
  tokenizer_path: tokenizers/qwen
  status: false
  extra_body: {temperature: 0.2}
scorer_agent:
  models:
    - {api_key: "", base_url: "http://localhost:38890/v1", model: judge}
"""


@pytest.fixture
def read(tmp_path):
    def run(text):
        path = tmp_path / "agent_config.yml"
        path.write_text(text, encoding="utf-8")
        return read_browse_agent(path)

    return run


def test_every_key_is_read(read, tmp_path, monkeypatch):
    monkeypatch.setenv("BROWSE_KEY", "sk-from-the-environment")
    monkeypatch.setenv("BROWSE_MODEL", "small")
    found = read(WHOLE)
    small, large = found.models
    assert (small.model, small.base_url, small.api_key_env, small.read_key()) == (
        "small", "http://localhost:38889/v1", "BROWSE_KEY", "sk-from-the-environment",
    )  # fmt: skip
    assert (large.model, large.base_url, large.api_key) == ("large", "https://api.example.org/v1", "sk-secret")
    assert [model.extra_body for model in found.models] == [{"temperature": 0.2}] * 2
    assert found == BrowseSettings(
        models=found.models,
        max_retries=1,
        retry_delay=0.5,
        timeout=60.0,
        max_prompt_length=5000,
        min_prompt_length=100,
        enable_logging=True,
        browse_tools=("fetch_url", "visit", "execute_code"),
        default_purpose={"execute_code": "Tell what the program printed."},
        tokenizer_path="tokenizers/qwen",
        status=False,
    )
    assert read_agent_config(tmp_path / "agent_config.yml").models[0].model == "judge"


def test_defaults_are_agentrls(read):
    found = read(f"browse_agent: {{models: [{MODEL}], tokenizer_path: null}}")
    assert (found.max_retries, found.retry_delay, found.timeout) == (3, 2.0, 120.0)
    assert (found.max_prompt_length, found.min_prompt_length, found.tokenizer_path) == (60_000, 2_000, None)
    assert (found.browse_tools, found.default_purpose) == (("fetch_url", "visit"), {})
    assert (found.status, found.enable_logging) == (True, False)
    assert found.models[0].extra_body == EXTRA_BODY


def test_a_key_is_never_shown(read, monkeypatch):
    monkeypatch.setenv("BROWSE_KEY", "sk-from-the-environment")
    monkeypatch.setenv("BROWSE_MODEL", "small")
    assert "sk-" not in repr(read(WHOLE))
    with pytest.raises(ConfigError) as caught:
        read(
            "browse_agent: {models: [{base_url: ftp://x, model: m, api_key: sk-secret, apikey: sk-secret}], "
            "api_key: sk-secret}"
        )
    assert "sk-" not in str(caught.value)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("max_retries: -1", "max_retries: expected a whole number of at least 0"),
        ("retry_delay: soon", "retry_delay: expected a number of at least 0"),
        ("timeout: 0", "timeout: expected a number above 0"),
        ("max_prompt_length: 0", "max_prompt_length: expected a number above 0"),
        ("min_prompt_length: many", "min_prompt_length: expected a whole number"),
        ("enable_logging: maybe", "enable_logging: expected true or false"),
        ("status: 1", "status: expected true or false"),
        ("browse_tools: visit", "browse_tools: expected a list of names of tools"),
        ("default_purpose: [a]", "default_purpose: expected a section of names of tools"),
        ("tokenizer_path: <YOUR_PATH>", "tokenizer_path: <YOUR_PATH> is a placeholder"),
        ("extra_body: {model: x}", "extra_body: model is set by agentrl"),
        ("min_prompt_lenght: 1", "unknown key min_prompt_lenght (did you mean min_prompt_length?)"),
        ("models: []", "models: expected a list of"),
        ("models: [{base_url: 'http://x', model: m, api_key: '${NOWHERE_SET}', url: x}]", "unknown key url"),
        ("models: [{model: m}]", "the model has no base_url"),
        ("models: [{upstream: judge}]", "unknown key upstream"),
    ],
)
def test_a_wrong_value_is_named_with_its_line(read, line, said):
    key = line.partition(":")[0]
    models = "" if key == "models" else f"  models: [{MODEL}]\n"
    with pytest.raises(ConfigError) as caught:
        read(f"browse_agent:\n{models}  {line}\n")
    assert said in str(caught.value)
    assert f"agent_config.yml:{2 if key == 'models' else 3}: " in str(caught.value)


def test_sections_are_checked(read):
    with pytest.raises(ConfigError, match="the section browse_agent is missing"):
        read(f"scorer_agent: {{models: [{MODEL}]}}")
    with pytest.raises(ConfigError, match=r"unknown key browser_agent .did you mean browse_agent"):
        read(f"browser_agent: {{models: [{MODEL}]}}")


def test_a_variable_that_is_not_set_is_named(read):
    with pytest.raises(ConfigError, match="the environment variable NOWHERE_SET is empty or not set"):
        read("browse_agent: {models: [{base_url: 'http://x', model: '${NOWHERE_SET}'}]}")


def test_options_take_precedence_over_the_file(read):
    base = read(f"browse_agent: {{models: [{MODEL}], timeout: 5, extra_body: {{top_p: 0.5, temperature: 1}}}}")
    found = browse_options({"timeout": 7, "extra_body": {"temperature": 0}}, base)
    assert (found.timeout, found.models[0].extra_body) == (7.0, {"top_p": 0.5, "temperature": 0})
    found = browse_options({"models": [{"upstream": "judge"}]}, base)
    assert (found.timeout, found.models) == (5.0, (Upstream(upstream="judge"),))


def test_options_alone_are_enough_and_hold_no_keys():
    model = {"base_url": "http://localhost:1", "model": "m", "api_key_env": "KEY"}
    (found,) = browse_options({"models": [model]}, None).models
    assert (found.api_key_env, found.extra_body) == ("KEY", {})
    with pytest.raises(ValueError, match="models: expected a list"):
        browse_options({}, None)
    with pytest.raises(ValueError, match="api_key_env") as caught:
        browse_options({"models": [{"base_url": "http://localhost:1", "model": "m", "api_key": "sk-secret"}]}, None)
    assert "sk-secret" not in str(caught.value)
