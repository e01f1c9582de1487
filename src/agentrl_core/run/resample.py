"""Sample an episode anew from one of its calls on: recorded completions before it, the run's own model after it.

Agent, tools, gateway and scorer are real, and other models that the agent calls are asked anew. The result is returned
and not stored in the run.
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING

import attrs

from agentrl_core.config import LoadedConfig
from agentrl_core.engines.replay import Divergence, ResamplingEngine
from agentrl_core.errors import UsageError
from agentrl_core.run.components import resolve
from agentrl_core.run.in_process import policy_chat
from agentrl_core.run.replay import Rerun, on_free_port, read_config, scratch_directory, seed_key, training_step_of
from agentrl_core.run.tools import toolbox_of
from agentrl_core.weights.manifest import peek_manifest

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from agentrl_core.api.engines import Engine
    from agentrl_core.api.stores import GroupRow, StepRow
    from agentrl_core.run.directory import RunDirectory
    from agentrl_core.types import Episode, Task


@attrs.frozen(kw_only=True)
class Resampled:
    """An episode that was sampled anew from a call on."""

    turn: int
    """Number of the first call that was sampled."""
    version: int
    """Policy version of the weights that sampled."""
    weights: str
    """Their folder."""
    repeated: int
    """Calls that were repeated as recorded."""
    episode: Episode | None
    """The new episode; None after a divergence."""
    divergence: Divergence | None
    """First prompt before call `turn` that differs from the recorded ones."""


def resample(
    episode: Episode,
    task: Task,
    directory: RunDirectory,
    model_dir: Path,
    *,
    turn: int,
    seed: int | None,
    groups: Sequence[GroupRow],
    steps: Sequence[StepRow],
) -> Resampled:
    """Repeat the calls of an episode before call `turn`, and sample the rest with the run's newest checkpoint.

    `model_dir` is the policy before training, for a run without checkpoints. With `seed` other tokens are drawn than
    the episode's own random numbers give. `groups` and `steps` are those of `replay`. Raises `UsageError` if the
    episode has no call `turn`, or if the run's config has no workflow that can be called.
    """
    calls = len(episode.interactions)
    if not 0 <= turn < calls:
        raise UsageError(f"record {episode.record.id} has no call {turn}; expected one of 0 to {calls - 1}")
    config, base_dir = read_config(directory)
    weights = next((path for _, path in directory.all_checkpoints()), model_dir)
    manifest = peek_manifest(weights)
    with ExitStack() as closing:
        components = resolve(LoadedConfig(on_free_port(config), base_dir))
        closing.callback(components.close)
        scratch = closing.enter_context(scratch_directory())
        chat = policy_chat(components, weights)
        live: Engine = components.build("engines", "engine", config.engine, model_dir=weights)
        closing.callback(live.close)
        live.start()
        version = manifest.version if manifest is not None else 0
        engine = ResamplingEngine(episode, turn=turn, live=live, version=version, seed=seed, decode=chat.reply_text)
        step = training_step_of(episode, steps)
        tools, stops = toolbox_of(components), (engine.diverged,)
        rerun = Rerun(components, episode, task, chat, engine, tools=tools, stops=stops, scratch=scratch, step=step)
        done = rerun.run(seed_key(episode, config, groups))
        return Resampled(
            turn=turn,
            version=version,
            weights=str(weights),
            repeated=len(engine.answered),
            episode=done,
            divergence=engine.diverged.result() if engine.diverged.done() else None,
        )
