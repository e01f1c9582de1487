"""Counterpart of `areal.api.workflow_api`: base classes of workflows and agents.

AReaL's training scripts pass `gconfig`, `tokenizer` and `reward_fn` to a workflow as objects. Here a config names them,
or the run supplies them.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import agentrl_core
from agentrl_areal.api.cli_args import GenerationHyperparameters
from agentrl_areal.utils.hf_utils import load_hf_tokenizer
from agentrl_core import AgentWorkflow
from agentrl_core.api.options import construct, resolve, user_folders
from agentrl_core.errors import ConfigError, PluginError

if TYPE_CHECKING:
    from agentrl_core import RunConfig
    from agentrl_core.api.token_level import TokenEngine

__all__ = ["AgentWorkflow", "RolloutWorkflow", "WorkflowLike"]

WorkflowLike: TypeAlias = "agentrl_core.RolloutWorkflow | type[agentrl_core.RolloutWorkflow] | str | Any"


_OF_THE_RUN = object()
"""Argument `tokenizer` of a workflow whose run makes its own model, and with it a tokenizer, after the workflow."""


class _Postponed(agentrl_core.RolloutWorkflow):
    """Workflow that is built when its first episode begins, with the policy's tokenizer."""

    def __init__(self, build: Callable[..., agentrl_core.RolloutWorkflow]) -> None:
        self._build = build
        self._built: agentrl_core.RolloutWorkflow | None = None

    async def arun_episode(self, engine: TokenEngine, data: dict[str, Any]) -> Any:
        """Run one episode of the workflow."""
        if self._built is None:
            self._built = self._build(tokenizer=engine.tokenizer)
        return await self._built.arun_episode(engine, data)


class _Postponing:
    """Base of a class that is built later if its tokenizer is not there yet."""

    def __new__(cls, *args: Any, **options: Any) -> Any:
        if options.get("tokenizer") is not _OF_THE_RUN:
            return super().__new__(cls)
        del options["tokenizer"]
        return _Postponed(functools.partial(cls, *args, **options))


class RolloutWorkflow(_Postponing, agentrl_core.RolloutWorkflow):
    """Base class of workflows on token ids.

    Three parameters of a constructor are filled in. `gconfig` and `tokenizer` are those of the run, unless the config
    sets them; in the config, `tokenizer` is a folder or a name. `reward_fn` is a name such as `my_rewards.exact` or
    `file.py:exact`.

    With `model: {use: …}` the run makes the tokenizer, so the constructor runs when the first episode begins, and the
    tokenizer is that of `engine.tokenizer`: `apply_chat_template`, `encode`, `decode` and the ids of special tokens.
    """

    def __init__(self) -> None:
        """Take no options; a subclass has its own."""

    @classmethod
    def complete_options(
        cls, options: Mapping[str, Any], *, run: RunConfig, base_dir: Path, where: Callable[[str], str]
    ) -> Mapping[str, Any]:
        """Return the constructor's arguments: the options of the config, completed from the run."""
        wanted = inspect.signature(cls).parameters
        made = dict(options)
        if "gconfig" in wanted and isinstance(made.get("gconfig"), Mapping | None):
            made["gconfig"] = _gconfig(made.get("gconfig") or {}, run, where("gconfig"))
        if "tokenizer" in wanted and isinstance(made.get("tokenizer"), str | None):
            made["tokenizer"] = _tokenizer(made.get("tokenizer"), run, base_dir, where)
        if "reward_fn" in wanted and isinstance(made.get("reward_fn"), str):
            made["reward_fn"] = _function(made["reward_fn"], base_dir, where("reward_fn"))
        return made


def _gconfig(options: Mapping[str, Any], run: RunConfig, where: str) -> GenerationHyperparameters:
    """Return the run's sampling options, with `options` taking precedence."""
    sampling = run.sampling
    of_run = {
        "n_samples": run.rollout.group_size,
        "min_new_tokens": sampling.min_tokens,
        "temperature": None,  # the run's own temperature, which differs between training and evaluations
        "stop": list(sampling.stop) or None,
        "stop_token_ids": list(sampling.stop_token_ids),
        "ignore_eos": sampling.ignore_eos,
    }
    if sampling.max_tokens is not None:
        of_run["max_new_tokens"] = sampling.max_tokens
    made: GenerationHyperparameters = construct(
        GenerationHyperparameters, of_run | dict(options), name="gconfig", where=where, injected={}
    )
    return made


def _tokenizer(named: str | None, run: RunConfig, base_dir: Path, where: Callable[[str], str]) -> Any:
    name = named or run.model.path
    if name is None and run.model.use is not None:
        return _OF_THE_RUN
    if name is None:
        raise ConfigError(
            f"{where('tokenizer')}: no tokenizer: the config has no model.path; fix: set it to a folder with the "
            "policy's tokenizer"
        )
    folder = base_dir / Path(name).expanduser()
    return load_hf_tokenizer(str(folder) if folder.is_dir() else name)


def _function(name: str, base_dir: Path, where: str) -> Any:
    theirs = name.partition(".")[0] == "areal"
    try:
        return resolve(f"agentrl_{name}" if theirs else name, user_folders(base_dir)).value
    except PluginError as error:
        raise ConfigError(f"{where}: {error}") from error
