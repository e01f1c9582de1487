"""`Workflow`, the protocol of agents, and the base classes `AgentWorkflow` and `RolloutWorkflow` (on token ids)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from agentrl_core.api.scoring import Answer
    from agentrl_core.api.token_level import TokenEngine
    from agentrl_core.config.schema import RunConfig

Reward: TypeAlias = "float | int | bool | Mapping[str | int, float] | Answer | None"
"""Return type of `run`: a number for the whole episode; `{interaction id or turn index: number}`; None, so that the
task's scorer decides; or an `Answer`, so that the scorer decides on that text instead of the last reply. numpy
scalars count as numbers."""


class Workflow(Protocol):
    """Any object with `run(data, **extra_kwargs)`, sync or async; a plain function works too.

    One object serves all episodes, concurrently: an async `run` on the agents' event loop, which it must not block, a
    sync one on a new thread. `data` is a copy. `EpisodeError` rejects the record; any other exception fails it. `run`
    receives those of these arguments that its signature accepts: `base_url`, `api_key`, `http_client` (async only),
    `record_id`, `is_eval`.

    The class may have `leaves_scoring = True`: `run` never returns a reward, so a run is refused before it starts if a
    task has no scorer.

        class MathAgent:
            async def run(self, data, *, base_url, api_key, http_client, **_):
                client = AsyncOpenAI(base_url=base_url, api_key=api_key, http_client=http_client, max_retries=0)
                reply = await client.chat.completions.create(model="default", messages=data["messages"])
                return float(reply.choices[0].message.content.strip() == data["answer"])
    """

    def run(self, data: dict[str, Any], **extra_kwargs: Any) -> Any:
        """Run one episode and return its `Reward` (or an awaitable of it)."""
        ...


class AgentWorkflow(ABC):
    """Optional base class of workflows; any object with `run` works without it."""

    @abstractmethod
    async def run(self, data: dict[str, Any], **extra_kwargs: Any) -> Reward:
        """Run one episode and return its reward."""


class RolloutWorkflow(ABC):
    """Base class of token-level workflows, which build their own prompts and call the engine directly.

        class OneTurn(RolloutWorkflow):
            async def arun_episode(self, engine, data):
                ids = engine.tokenizer.apply_chat_template(data["messages"], add_generation_prompt=True)
                response = await engine.agenerate(ModelRequest(input_ids=ids))
                return float(engine.tokenizer.decode(response.output_tokens).startswith(data["answer"]))

    Its calls are recorded like those of any agent. It runs in the run's own process only, because the engine is there.
    """

    @classmethod
    def complete_options(
        cls,
        options: Mapping[str, Any],
        *,
        run: RunConfig,  # noqa: ARG003 (for subclasses)
        base_dir: Path,  # noqa: ARG003
        where: Callable[[str], str],  # noqa: ARG003
    ) -> Mapping[str, Any]:
        """Return the constructor's arguments, given the config's options; override it to add some from the run.

        Called before the class is built; relative paths start from `base_dir`. Raise `ConfigError` to stop the run,
        with a message that begins with `where(option)`.
        """
        return options

    @abstractmethod
    async def arun_episode(self, engine: TokenEngine, data: dict[str, Any]) -> Any:
        """Run one episode.

        Return a number, `{interaction id or turn index: number}` or an `Answer`; or AReaL's dict of tensors `input_ids,
        loss_mask, rewards, …`, whose `rewards` count if all else in it is what the engine has sampled. None rejects the
        episode: here it does not leave the reward to a scorer.
        """
