"""task.toml: what is read, with Harbor's defaults, and what is refused."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrl_harbor.task_config import read_config, resolved


def test_an_empty_config_has_harbors_defaults():
    config = read_config("")
    assert (config.verifier.timeout_s, config.environment.build_timeout_s) == (600, 600)
    assert (config.agent_timeout_s, config.environment.network, config.environment.memory_mb) == (None, "public", None)
    assert config.verifier.environment is None
    assert config.keep_processes is False


def test_a_full_config_is_read():
    config = read_config("""
        schema_version = "1.4"
        artifacts = ["/app/out", {source = "/app/db", destination = "db"}]
        [task]
        name = "org/task"
        [metadata]
        anything = "goes"
        [metadata.agentrl]
        keep_processes = true
        [solution]
        env = {A = "b"}
        [verifier]
        timeout_sec = 12.5
        env = {KEY = "${KEY}"}
        user = 1000
        [agent]
        timeout_sec = 30
        user = "agent"
        [environment]
        build_timeout_sec = 5
        docker_image = "org/image:1"
        cpus = 2
        memory_mb = 512
        storage_mb = 1000
        workdir = "/work"
        network_mode = "no-network"
        env = {A = "b"}
        gpus = 0
        [environment.healthcheck]
        command = "true"
        retries = 1
        """)
    assert config.artifacts == ("/app/out", "/app/db")
    assert (config.verifier.timeout_s, config.verifier.user, config.verifier.env) == (12.5, "1000", {"KEY": "${KEY}"})
    assert (config.agent_timeout_s, config.agent_user) == (30, "agent")
    assert (config.keep_processes, config.solution_env) == (True, {"A": "b"})
    environment = config.environment
    assert (environment.docker_image, environment.cpus, environment.memory_mb) == ("org/image:1", 2, 512)
    assert (environment.workdir, environment.network, environment.env) == ("/work", "no-network", {"A": "b"})
    assert (environment.healthcheck.command, environment.healthcheck.retries) == ("true", 1)
    assert environment.healthcheck.timeout_s == 30


def test_older_forms_are_read():
    config = read_config('version = "1.0"\n[environment]\nmemory = "2G"\nstorage = "500M"\nallow_internet = false\n')
    environment = config.environment
    assert (environment.memory_mb, environment.storage_mb, environment.network) == (2048, 500, "no-network")


@pytest.mark.parametrize(
    ("text", "image"),
    [
        ('[verifier]\nenvironment_mode = "separate"\n[environment]\ndocker_image = "a"', "a"),
        ('[verifier.environment]\ndocker_image = "b"\n[environment]\ndocker_image = "a"', "b"),
    ],
)
def test_a_verifier_may_have_an_environment_of_its_own(text, image):
    assert read_config(text).verifier.environment.docker_image == image


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("a = ", "not TOML"),
        ('schema_version = "9"', "schema_version: expected one of"),
        ('[[steps]]\nname = "one"', "several steps"),
        ('[environment]\nos = "windows"', "only linux"),
        ("[environment]\ngpus = 1", "environment.gpus: not supported"),
        ('[[environment.mcp_servers]]\nname = "x"', "mcp_servers: not supported"),
        ('[environment]\nnetwork_mode = "allowlist"\nallowed_hosts = ["a.com"]', "'allowlist' cannot be enforced"),
        ('[environment]\nnetwork_mode = "x"', "expected public, no-network or allowlist, found 'x'"),
        ('[agent]\nnetwork_mode = "no-network"', "agent.network_mode: must be that of its environment"),
        ('[[verifier.collect]]\ncommand = "x"', "verifier.collect"),
        ('[verifier]\nenvironment_mode = "both"', "expected shared or separate"),
        ('[verifier]\nenvironment_mode = "shared"\n[verifier.environment]\ncpus = 1', "not possible"),
        ("[verifier]\ntimeout_sec = -1", "verifier.timeout_sec: expected a number"),
        ("[agent]\ntimeout_sec = nan", "agent.timeout_sec: expected a number"),
        ("[environment]\nmemory = '2X'", "expected a size"),
        ("[environment]\nenv = {A = 1}", "environment.env"),
        ("[environment]\nworkdir = 3", "environment.workdir: expected a text"),
        ('artifacts = ["../x"]', "artifacts.0: expected an absolute path"),
        ('artifacts = ["/a/../x"]', "artifacts.0"),
        ('artifacts = [{source = "/a", service = "db"}]', "only main"),
        ("environment = 3", "environment: expected a table"),
        ("[metadata]\nagentrl = 3", "metadata.agentrl: expected keep_processes"),
        ("[metadata.agentrl]\nkeep_processes = 1", "metadata.agentrl: expected keep_processes"),
        ("[environment]\nhealthcheck = 3", "healthcheck.command"),
    ],
)
def test_what_cannot_be_done_is_refused(text, reason):
    with pytest.raises(ValueError, match=reason):
        read_config(text)


def test_variables_come_from_this_process(monkeypatch):
    monkeypatch.setenv("AGENTRL_TEST", "there")
    env = {"A": "${AGENTRL_TEST}", "B": "${AGENTRL_MISSING:-default}", "C": "plain $X", "D": "${AGENTRL_MISSING:-}"}
    assert resolved(env) == {"A": "there", "B": "default", "C": "plain $X", "D": ""}
    with pytest.raises(ValueError, match="AGENTRL_MISSING, which is not set"):
        resolved({"A": "${AGENTRL_MISSING}"})


@given(st.dictionaries(st.sampled_from(["environment", "agent", "verifier", "steps", "artifacts"]), st.integers()))
def test_wrong_types_are_refused_with_a_reason(root):
    text = "\n".join(f"{name} = {value}" for name, value in root.items())
    try:
        read_config(text)
    except ValueError as error:
        assert str(error)  # noqa: PT017 - either is fine
