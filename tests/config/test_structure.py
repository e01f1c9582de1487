"""A RunConfig survives being written as plain data and read back."""

import json

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentrl_core.config import dump, dump_without_passwords, parse
from agentrl_core.config.component import Component
from agentrl_core.config.sampling_sections import (
    AgentConfig,
    GatewayConfig,
    RolloutConfig,
    SamplingConfig,
    UpstreamConfig,
)
from agentrl_core.config.schema import DataConfig, PluginsConfig, RunConfig
from agentrl_core.config.training_sections import ModelConfig, TrainerConfig, WarmStartConfig
from agentrl_core.errors import ConfigError

names = st.from_regex(r"[a-z][a-z0-9_]{0,8}", fullmatch=True)
texts = st.text(st.characters(codec="utf-8"), min_size=1, max_size=12).filter(lambda text: "<YOUR_" not in text)
amounts = st.floats(min_value=1e-9, max_value=1e9)
counts = st.integers(min_value=1, max_value=10**6)
plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=6,
)


def options(*reserved):
    return st.dictionaries(names.filter(lambda name: name not in reserved), plain, max_size=3)


components = st.builds(Component, texts, options("use"))
sources = texts | components
paths = st.builds(ModelConfig, path=texts, dtype=st.sampled_from(["float32", "bfloat16"]))
builders = st.builds(ModelConfig, use=texts, options=options("path", "use", "dtype"))
configs = st.builds(
    RunConfig,
    name=st.just("") | names,
    seed=st.integers(min_value=0, max_value=2**63 - 1),
    output_dir=texts,
    model=st.just(ModelConfig()) | paths | builders,
    warm_start=st.none() | st.builds(WarmStartConfig, data=texts, lr=amounts),
    data=st.builds(DataConfig, train=sources, eval=st.none() | sources | st.dictionaries(texts, sources, max_size=2)),
    workflow=components,
    sampling=st.builds(SamplingConfig, max_tokens=st.none() | counts, temperature=amounts),
    gateway=st.builds(GatewayConfig, port=st.integers(0, 65535), history=st.sampled_from(["exact", "template"])),
    rollout=st.builds(
        RolloutConfig,
        group_size=counts.map(lambda count: count + 1),
        agent=st.builds(AgentConfig, turn_discount=st.floats(0, 1)),
    ),
    loss=components,
    launcher=components,
    shaping=st.lists(components, max_size=2).map(tuple),
    filters=st.lists(components, max_size=2).map(tuple),
    trackers=st.lists(components, max_size=2).map(tuple),
    trainer=st.builds(TrainerConfig, lr=amounts, stop_at_reward=st.none() | amounts),
    plugins=st.builds(PluginsConfig, block=st.lists(names, max_size=2).map(tuple)),
)


@settings(max_examples=50)
@given(configs)
def test_a_dumped_config_parses_to_an_equal_one(config):
    assert parse(dump(config)) == config


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ("mongodb://me:hush@h:1/d", "mongodb://me@h:1/d"),
        ("mongodb://me:hu/s@h@h:1", "mongodb://me@h:1"),
        ("mongodb://h/?tlsCertificateKeyFilePassword=hush&w=1", "mongodb://h/?w=1"),
        ("mongodb://h/?w=1&authMechanismProperties=AWS_SESSION_TOKEN:hush", "mongodb://h/?w=1"),
        ("mongodb://h/?AUTHMECHANISMPROPERTIES=a:hush", "mongodb://h/"),
        ("mongodb://h/?w=1;tlsCertificateKeyFilePassword=hush;journal=true", "mongodb://h/?w=1&journal=true"),
        ("mongodb://h/?authSource=secretdb&appName=tokens", "mongodb://h/?authSource=secretdb&appName=tokens"),
        ("mongodb://h", "mongodb://h"),
        ("folder:with@signs?token=x", "folder:with@signs?token=x"),
    ],
)
def test_what_is_kept_of_a_config_has_no_password_of_the_store(given, kept):
    config = parse({"data": "a.jsonl", "workflow": "x", "store": {"use": "mongo", "url": given, "more": [given]}})
    assert dump_without_passwords(config) == {**dump(config), "store": {"use": "mongo", "url": kept, "more": [kept]}}
    assert dump(config)["store"]["url"] == given


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ("https://me:hush@h:1/d?max_tokens=5", "https://me@h:1/d?max_tokens=5"),
        ("from postgres://me:hu@sh@h and https://:hush@i", "from postgres://me@h and https://@i"),
        ("http://h:8000/v1/models@v2", "http://h:8000/v1/models@v2"),
        ("mail me: a@b", "mail me: a@b"),
    ],
)
def test_what_is_kept_of_a_config_has_no_password_in_any_url(given, kept):
    config = parse(
        {
            "data": "a.jsonl",
            "workflow": {"use": "x", "more": {"places": [given]}},
            "trackers": [{"use": "board", "url": given}],
            "scorers": {"mine": {"use": "y", "url": given}},
        }
    )
    cleaned = dump_without_passwords(config)
    assert cleaned["workflow"]["more"] == {"places": [kept]}
    assert (cleaned["trackers"][0]["url"], cleaned["scorers"]["mine"]["url"]) == (kept, kept)
    changed = {"workflow", "trackers", "scorers"}
    assert {name: item for name, item in cleaned.items() if name not in changed} == {
        name: item for name, item in dump(config).items() if name not in changed
    }


sections = st.sampled_from(
    [*attrs.fields_dict(RunConfig), "num_generations", "token_level_loss", "gconfig", "scheduler"]
)


@settings(max_examples=200)
@given(
    st.dictionaries(sections | texts, plain, max_size=5),
    st.lists(st.tuples(st.lists(sections | names | st.just("0"), min_size=1, max_size=3), plain), max_size=3),
)
def test_whatever_is_given_is_a_config_or_a_config_error(given_data, overrides):
    lines = [f"{'.'.join(path)}={json.dumps(value)}" for path, value in overrides]
    try:
        config = parse({"data": "a.jsonl", "workflow": "x", **given_data}, lines)
    except ConfigError:
        return
    assert parse(dump(config)) == config


def test_upstreams_are_given_by_model_name():
    upstreams = {"judge": {"url": "https://host/v1", "api_key_env": "JUDGE_KEY"}, "user": {"url": "http://host:1"}}
    config = parse({"data": "tasks.jsonl", "gateway": {"upstreams": upstreams}})
    assert config.gateway.upstreams == {
        "judge": UpstreamConfig(url="https://host/v1", api_key_env="JUDGE_KEY"),
        "user": UpstreamConfig(url="http://host:1", timeout_s=120.0, max_retries=2),
    }
    assert parse(dump(config)) == config
    with pytest.raises(ConfigError, match="api_key"):
        parse({"data": "tasks.jsonl", "gateway": {"upstreams": {"judge": {"url": "http://host", "api_key": "sk-1"}}}})


def test_everything_wrong_with_upstreams_is_told_with_its_name_and_without_passwords():
    upstreams = {
        "gpt-4.1": {"url": "https://me:hunter2@host/v1", "api_keyenv": "K"},
        "judge": {"url": "http://host", "timeout_s": 0},
        "bare": "http://host",
    }
    with pytest.raises(ConfigError) as raised:
        parse({"data": "tasks.jsonl", "gateway": {"upstreams": upstreams}})
    url = "http(s)://host[:port][/path], the part before /chat/completions, without user, password or query"
    assert str(raised.value).splitlines() == [
        "config: gateway.upstreams.gpt-4.1.api_keyenv: unknown option (did you mean api_key_env?)",
        f"config: gateway.upstreams.gpt-4.1.url: expected {url}, found 'https://***@host/v1'",
        "config: gateway.upstreams.judge.timeout_s: expected a number above 0, found 0.0",
        'config: gateway.upstreams.bare: expected a section of options, found the text "http://host"',
    ]
    with pytest.raises(ConfigError, match="no model named default, which is the policy's name"):
        parse({"data": "tasks.jsonl", "gateway": {"upstreams": {"default": {"url": "http://host"}}}})


def test_a_dump_is_plain_and_complete():
    config = parse(
        {"data": "a.jsonl", "workflow": {"use": "x", "deep": {"list": [1]}}, "model": {"use": "tiny", "n": 1}}
    )
    dumped = dump(config)
    assert set(dumped) == set(attrs.fields_dict(RunConfig))
    assert dumped["workflow"] == {"use": "x", "deep": {"list": [1]}}
    assert dumped["model"] == {"use": "tiny", "dtype": "float32", "n": 1}
    assert dumped["trackers"] == [{"use": "console"}, {"use": "jsonl"}, {"use": "curve"}]
    assert dumped["trainer"]["betas"] == [0.9, 0.95]
    dumped["workflow"]["deep"]["list"].append(2)
    assert config.workflow.options == {"deep": {"list": [1]}}
