"""What a judge is built from: options, or AgentRL's file, each fault with its place."""

import json

import pytest

from agentrl_core.errors import ConfigError
from agentrl_core.plugins.options import construct
from agentrl_judge.agent_config import read_agent_config
from agentrl_judge.judge import Judge
from agentrl_judge.settings import ModelSettings

EXAMPLE = """\
# as AgentRL has it
browse_agent:
  models:
    - {api_key: sk-browse, base_url: http://127.0.0.1:7/v1, model: browser}
  max_prompt_length: 60000
  default_purpose: {visit: read}
scorer_agent:
  models:
    - api_key: "sk-literal"
      base_url: "https://one.example/v1"
      model: "gpt-4.1"
    - api_key: ${JUDGE_KEY}
      base_url: http://localhost:38889
      model: ${JUDGE_MODEL}
      extra_body: {top_k: 5}
  max_retries: 2
  retry_delay: 1
  backoff_factor: 2
  timeout: 60
  extra_body:
    chat_template_kwargs: {enable_thinking: false}
  judge_prompt_template: |
    Question: {question}
    Right: {labeled_answer}
    Said: {pred_answer}
    Is it correct?
"""


@pytest.fixture
def agent_config(tmp_path):
    def write(text, name="agent_config.yml"):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
        return path

    return write


def build(options, folder=None):
    return construct(
        Judge, options, name="judge", where="config.yaml:3: scorers.judge", injected={"config_dir": folder}
    )


def test_the_file_is_read_as_it_is(agent_config, monkeypatch):
    monkeypatch.setenv("JUDGE_KEY", "sk-secret")
    monkeypatch.setenv("JUDGE_MODEL", "qwen")
    found = read_agent_config(agent_config(EXAMPLE))
    one, two = found.models
    assert (one.model, one.base_url, one.api_key) == ("gpt-4.1", "https://one.example/v1", "sk-literal")
    assert (two.model, two.base_url, two.api_key_env) == ("qwen", "http://localhost:38889/v1", "JUDGE_KEY")
    assert one.extra_body == {"chat_template_kwargs": {"enable_thinking": False}}
    assert two.extra_body == {"chat_template_kwargs": {"enable_thinking": False}, "top_k": 5}
    assert (found.max_retries, found.retry_delay_s, found.backoff_factor, found.call_timeout_s) == (2, 1.0, 2.0, 60.0)
    assert found.template.startswith("Question: {question}\n")


def test_no_key_is_shown(agent_config, monkeypatch):
    monkeypatch.setenv("JUDGE_KEY", "sk-secret")
    monkeypatch.setenv("JUDGE_MODEL", "qwen")
    shown = repr(read_agent_config(agent_config(EXAMPLE)))
    assert "sk-literal" not in shown
    assert "sk-secret" not in shown


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        (
            "judge_prompt_template:",
            "judge_prompt_templat:",
            "22: unknown key judge_prompt_templat (did you mean judge_",
        ),
        ("scorer_agent:", "scorer_agents:", ":7: unknown key scorer_agents (did you mean scorer_agent?)"),
        ("scorer_agent:", "scorer:", "the section scorer_agent is missing"),
        (
            "      base_url: http://loc",
            "      base_ur1: http://loc",
            ":13: unknown key base_ur1 (did you mean base_url?)",
        ),
        ('      model: "gpt-4.1"\n', "", ":9: the model has no model"),
        (
            "max_retries: 2",
            "max_retries: two",
            ":16: max_retries: expected a whole number of at least 0, found the text",
        ),
        ("timeout: 60", "timeout: 0", ":19: timeout: expected a number above 0"),
        ("backoff_factor: 2", "backoff_factor: 0.5", ":18: backoff_factor: expected a number of at least 1"),
        ("{pred_answer}", "{prediction}", ":22: judge_prompt_template: there is no placeholder {prediction}"),
        ("https://one.example/v1", "one.example/v1", ":10: base_url: expected http(s)://host"),
        ("https://one.example/v1", "https://me:secret@one.example/v1", ":10: base_url: expected http(s)://host"),
        ("http://localhost:38889", "${OPENAI_BASE_URL}", ":13: base_url: OPENAI_BASE_URL may point at the gateway"),
        ("http://localhost:38889", "${NOWHERE_URL}", ":13: base_url: the environment variable NOWHERE_URL is empty"),
        ("{top_k: 5}", "{model: other}", ":15: extra_body: model is set by agentrl itself"),
        (
            '"sk-literal"',
            "<YOUR_API_KEY>",
            ':9: api_key: <YOUR_API_KEY> is a placeholder; write api_key: "${API_KEY}" and',
        ),
        ('"sk-literal"', "12345", ":9: api_key: expected a text (quote it)"),
        ('"sk-literal"', '"sk-§"', ":9: api_key: contains characters that an HTTP header cannot hold"),
    ],
)
def test_a_fault_of_the_file_is_named_with_its_line(agent_config, monkeypatch, old, new, said):
    monkeypatch.setenv("JUDGE_MODEL", "qwen")
    monkeypatch.setenv("OPENAI_BASE_URL", "http://127.0.0.1:1/v1")
    with pytest.raises(ConfigError) as caught:
        read_agent_config(agent_config(EXAMPLE.replace(old, new)))
    assert said in str(caught.value)
    assert "agent_config.yml:" in str(caught.value)
    assert not any(secret in str(caught.value) for secret in ("sk-", "12345", "me:secret"))


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        ("Incorrect API key: sk-abcdefgh12345678.", "Incorrect API key: …."),
        ("Incorrect API key: sk-abcde***345678", "Incorrect API key: …***…"),
        ("sk-abcdefgh12345678sk-abcdefgh12345678", "…"),
        ("the key ends with 5678", "the key ends with 5678"),
        ("no key", "no key"),
    ],
)
def test_parts_of_a_key_are_hidden(said, shown):
    settings = ModelSettings(model="m", base_url="http://x/v1", api_key="sk-abcdefgh12345678")
    assert settings.without_key(said) == shown
    assert ModelSettings(model="m", base_url="http://x/v1").without_key(said) == said
    assert ModelSettings(model="m", base_url="http://x/v1", api_key="key").without_key("no key") == "no …"


@pytest.mark.parametrize("name", ["served-model-name", "served_model_name"])
def test_a_model_may_be_named_as_its_server_is_told_to_serve_it(agent_config, monkeypatch, name):
    monkeypatch.setenv("JUDGE_MODEL", "qwen")
    renamed = EXAMPLE.replace('model: "gpt-4.1"', f'{name}: "gpt-4.1"')
    assert read_agent_config(agent_config(renamed)).models[0].model == "gpt-4.1"
    both = EXAMPLE.replace('model: "gpt-4.1"', f'model: "gpt-4.1"\n      {name}: "gpt-5"')
    with pytest.raises(ConfigError, match=f":9: model and {name} differ; keep one of them"):
        read_agent_config(agent_config(both))


def test_all_faults_are_told_at_once(agent_config):
    with pytest.raises(ConfigError) as caught:
        read_agent_config(agent_config("scorer_agent: {models: [], timeout: -1, tries: 3}"))
    assert len(str(caught.value).splitlines()) == 3


def test_the_file_is_found_beside_the_config(agent_config, monkeypatch, tmp_path):
    monkeypatch.setenv("JUDGE_MODEL", "qwen")
    agent_config(EXAMPLE, "assets/agent_config.yml")
    judge = build({}, tmp_path)
    assert [model.settings.model for model in judge.panel.models] == ["gpt-4.1", "qwen"]
    assert judge.panel.patience.retry_delay_s == 1.0


def test_the_file_can_be_named_and_options_win_over_it(agent_config, monkeypatch, tmp_path):
    monkeypatch.setenv("JUDGE_MODEL", "qwen")
    agent_config(EXAMPLE, "judges.yml")
    judge = build({"config": "judges.yml", "max_retries": 7, "template": "{pred_answer}?"}, tmp_path)
    assert (judge.panel.patience.max_retries, judge.panel.patience.backoff_factor) == (7, 2.0)
    assert not judge.needs_reference


def test_without_models_it_is_said_what_to_write(tmp_path):
    with pytest.raises(
        ConfigError, match=r"no model is configured, and .* has no agent_config.yml .*models: \[\{base_url"
    ):
        build({}, tmp_path)


MODEL = {"base_url": "http://127.0.0.1:9", "model": "m"}


def test_models_can_be_options():
    judge = build({"models": [MODEL | {"api_key": "${KEY}", "input_price": 1}], "scale": "graded"})
    (model,) = judge.panel.models
    assert (model.settings.base_url, model.settings.api_key_env) == ("http://127.0.0.1:9/v1", "KEY")
    assert model.settings.cost(10**6, 0) == 1.0


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"models": [MODEL, {"modle": "m"}]}, "scorers.judge.models: judge: 'models': model 2: unknown key modle"),
        ({"models": [MODEL, {"model": "m"}]}, "model 2: the model has no base_url"),
        ({"models": []}, "at least one"),
        ({"models": "gpt"}, "scorers.judge.models: expected"),
        ({"models": [MODEL | {"api_key": "sk-1"}]}, "api_key: a run's config is stored with the run"),
        ({"models": [MODEL | {"api_key": "${A}", "api_key_env": "A"}]}, "set api_key or api_key_env, not both"),
        ({"models": [MODEL | {"api_key_env": "sk-1"}]}, "expected the name of an environment variable"),
        ({"models": [MODEL], "config": "x.yml"}, "scorers.judge.config: judge: 'config': set models or config"),
        ({"models": [MODEL], "scale": "grade"}, "scorers.judge.scale: expected binary or graded"),
        ({"models": [MODEL], "template": "none"}, "scorers.judge.template: judge: 'template': the placeholder"),
        ({"models": [MODEL], "timeout_s": 0}, "scorers.judge.timeout_s: judge: 'timeout_s' must be above 0"),
        ({"models": [MODEL], "call_timeout_s": float("inf")}, "'call_timeout_s' must be above 0 and finite"),
        ({"models": [MODEL], "max_retries": -1}, "'max_retries' must be at least 0"),
        ({"models": [MODEL], "max_retires": 1}, "unknown option of judge (did you mean max_retries?)"),
        ({"config": "missing.yml"}, "no such config file"),
    ],
)
def test_a_wrong_option_is_named_with_its_place(options, said, tmp_path):
    with pytest.raises(ConfigError) as caught:
        build(options, tmp_path)
    assert said in str(caught.value)
    assert "sk-1" not in json.dumps(str(caught.value))
