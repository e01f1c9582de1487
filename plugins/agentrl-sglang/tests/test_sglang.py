"""The engine `sglang`: it passes the conformance suite."""

import pytest

from agentrl_core.config.component import Component
from agentrl_core.errors import ConfigError
from agentrl_core.plugins.manager import load_registry
from agentrl_sglang.engine import SGLangEngine
from agentrl_testing.engines import EngineSuite


class OnSGLang(EngineSuite):
    @pytest.fixture
    def vocab_size(self, servers):
        return servers.VOCAB

    @pytest.fixture
    def reference_logprobs(self, servers):
        return servers.reference_logprobs  # the salt of version 0 is 0, that of version 1 is 1

    @pytest.fixture
    def grammars(self):
        """At temperatures other than 0 and 1, as the suite asks, the logprobs without one cannot be had."""
        return "refused"

    @pytest.fixture
    def engine_factory(self, server, model_dir):
        return lambda: SGLangEngine(url=server.url, model_dir=model_dir)


class TestSGLang(OnSGLang):
    pass


@pytest.mark.slow
class TestIncrementalSGLang(OnSGLang):
    """Its streams hold what is new, where the server is started so."""

    @pytest.fixture
    def server(self, server):
        server.incremental = True
        return server


def test_a_config_names_the_engine_and_its_options(tmp_path):
    registry = load_registry(environ={})
    engine = registry.load("engines", "sglang")
    assert engine is SGLangEngine
    built = registry.build(
        "engines", Component("sglang", {"url": ["http://a:1", "http://b:1"], "weights_dir": str(tmp_path)})
    )
    built.close()
    for options, says in [
        ({}, "expected one of the options 'url', 'servers_file'"),
        ({"url": "http://a:1", "weights_dir": 3}, "weights_dir: expected a path"),
        ({"url": ["http://a:1", "http://a:1"]}, "a server twice"),
        ({"url": "http://a:1", "server": "sglang"}, "unknown option"),
    ]:
        with pytest.raises(ConfigError, match=says):
            registry.build("engines", Component("sglang", options), where="engine")
