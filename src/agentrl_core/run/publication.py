"""Publication of weights, as the processes with an engine see it: what comes before the pause, and wrong choices."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agentrl_core.errors import ConfigError

if TYPE_CHECKING:
    from agentrl_core.api.engines import Engine
    from agentrl_core.api.weights import WeightSource
    from agentrl_core.run.components import RunComponents

_THROUGH_PLACE = ("disk", "delta")
"""Ways that `agentrl train` has to `agentrl serve`."""


async def prepare_weights(engine: Engine, version: int, source: WeightSource) -> None:
    """Have the engine do what it can before it pauses, if it has such a part (see `Engine`)."""
    prepare = getattr(engine, "prepare_weights", None)
    if prepare is not None:
        await prepare(version, source)


def check_in_process(components: RunComponents, engine: Engine) -> None:
    """Raise `ConfigError` if `weights.publish` names a way that is none for an engine in the learner's process."""
    chosen = components.config.weights.publish.use
    where = components.where("weights.publish")
    if chosen == "delta":
        raise ConfigError(
            f"{where}: delta is for `agentrl train` and `agentrl serve`, where a version crosses a file system; in one "
            "process use disk, nccl or ipc"
        )
    if chosen != "disk" and not hasattr(engine, "publishers"):
        raise ConfigError(
            f"{where}: {chosen} is for model servers; the engine {components.config.engine.use} copies the weights "
            "within this process. Leave it out"
        )


def check_through_place(components: RunComponents) -> None:
    """Raise `ConfigError` if `weights.publish` names a way that `agentrl train` does not have to its servers."""
    chosen = components.config.weights.publish.use
    if chosen not in _THROUGH_PLACE:
        raise ConfigError(
            f"{components.where('weights.publish')}: {chosen} needs learner and engine in one process, `agentrl run`; "
            f"for `agentrl train` expected {' or '.join(_THROUGH_PLACE)}"
        )
