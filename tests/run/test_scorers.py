"""Scorers are built before a run starts, and may look whether they can score."""

import pytest

from agentrl_core import hookimpl
from agentrl_core.config.schema import GatewayConfig
from agentrl_core.errors import ConfigError, PluginError
from agentrl_core.run.scorers import check_scorers
from agentrl_core.scorers.call import normalize_scorer
from agentrl_core.scorers.table import ScorerTable
from agentrl_core.testing import isolated_plugins


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
