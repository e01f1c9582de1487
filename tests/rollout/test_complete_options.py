"""A `RolloutWorkflow` may make its constructor's arguments of the run, and refuse them at the line of the config."""

from types import SimpleNamespace

import pytest

from agentrl_core import RolloutWorkflow, RunConfig
from agentrl_core.config.component import Component
from agentrl_core.config.sampling_sections import SamplingConfig
from agentrl_core.errors import ConfigError
from agentrl_core.plugins.registry import Registry
from agentrl_core.rollout.workflows import resolve_workflow


class Limited(RolloutWorkflow):
    built = ()

    def __init__(self, limit: int, folder: str = ""):
        type(self).built = (limit, folder)

    @classmethod
    def complete_options(cls, options, *, run, base_dir, where):
        if options.get("folder") == "wrong":
            raise ConfigError(f"{where('folder')}: not that one")
        return {"limit": run.sampling.max_tokens, "folder": base_dir.name, **options}

    async def arun_episode(self, engine, data):
        return 1.0


@pytest.fixture
def resolve(tmp_path):
    registry = Registry((), SimpleNamespace(adapt_agent=lambda **_: None))

    def make(workflow, options=None, run=None, **more):
        def where(option):
            return f"config.yaml:4: workflow.{option}" if option else "config.yaml:3: workflow"

        return resolve_workflow(
            workflow, registry=registry, base_dir=tmp_path / "base", where=where, options=options, run=run, **more
        )

    return make


RUN = RunConfig(sampling=SamplingConfig(max_tokens=7))


def test_what_the_run_gives_is_taken_where_the_config_gives_nothing(resolve):
    resolve(Limited, run=RUN)
    assert Limited.built == (7, "base")
    resolve(Limited, {"folder": "mine"}, run=RUN)
    assert Limited.built == (7, "mine")
    resolve(Component(f"{__file__}:Limited", {"limit": 3}), {"folder": "mine"}, run=RUN)


def test_a_refusal_names_the_line(resolve):
    with pytest.raises(ConfigError, match=r"^config\.yaml:4: workflow\.folder: not that one$"):
        resolve(Limited, {"folder": "wrong"}, run=RUN)


def limited():
    return Limited(1)


@pytest.mark.parametrize("workflow", [Limited, Limited(1), limited])
def test_without_an_engine_it_is_refused_before_it_is_built(resolve, workflow):
    with pytest.raises(
        ConfigError, match=r"^config\.yaml:3: workflow: .*imited calls the engine itself .*mode: inline$"
    ):
        resolve(workflow, run=RUN, has_engine=False)


def test_an_instance_is_kept_and_without_a_run_nothing_is_added(resolve):
    Limited.built = ()
    given = Limited(1)
    resolve(given, run=RUN)
    assert Limited.built == (1, "")
    with pytest.raises(ConfigError, match="needs the option 'limit'"):
        resolve(Limited)
