"""Options and packages in which all members of a run must agree, compared when a member joins.

A member shares the options that its role uses: a server needs neither the tasks nor the agent, and a sampler does not
need the loss. Options of one process alone, such as hosts, time limits and concurrency, may differ; so may the engine,
because the learner trains on the log-probabilities of whichever engine sampled.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agentrl_core import config as configs
from agentrl_core.api.members import Member, Role
from agentrl_core.errors import MemberError, UsageError
from agentrl_core.plugins.discovery import core_version

if TYPE_CHECKING:
    from agentrl_core.run.components import RunComponents
    from agentrl_core.types import Task

OPTIONS, TASKS = "options", "tasks"
"""Keys of a member's report: its shared options, and the source and digest of each of its task sets."""

_SERVED = (
    "seed", "model", "sampling", "context",
    "gateway.history", "gateway.temperature", "gateway.tool_parser", "gateway.unseen_tools", "gateway.reasoning_parser",
    "gateway.hosted_tools",
)  # fmt: skip
"""Options that decide what a server answers."""
_OWN = ("model.path",)
"""Options of these sections that may differ: a server loads the weights that the trainer has published."""
_SAMPLED = (
    "seed", "sampling", "workflow", "scorers", "data.default_scorer", "data.shuffle", "eval.temperature",
    "rollout.group_size", "rollout.tasks_per_step", "rollout.min_group_size", "rollout.max_head_offpolicyness",
    "rollout.pipeline_depth", "rollout.retries", "rollout.siblings", "rollout.requeue", "rollout.max_takeovers",
    "rollout.agent.mode", "trainer.steps",
)  # fmt: skip
"""Options that decide what a sampler samples, and when."""
_ORDERING = ("seed", "data.shuffle")
"""Options that decide in which order the tasks come."""
_OF_ROLE: Mapping[Role, Sequence[str]] = {
    "serve": _SERVED,
    "sample": _SAMPLED,
    "train": tuple(dict.fromkeys((*_SERVED, *_SAMPLED))),
}


def new_member(components: RunComponents, run_id: str, role: Role) -> Member:
    """Return the member that this process is about to become, with what it shares in its report."""
    options = dict(_shared(configs.dump_without_passwords(components.config), _OF_ROLE[role]))
    tasks = {} if role == "serve" else _task_sets(components)
    shared = json.dumps([options, {name: found["digest"] for name, found in tasks.items()}], sort_keys=True)
    return Member(
        run_id=run_id,
        role=role,
        lease_s=components.config.rollout.lease_s,
        config_digest=_digest(shared),
        packages=_packages(components.used.values()),
        report={OPTIONS: options, TASKS: tasks},
    )


def check_agreement(member: Member, members: Sequence[Member]) -> None:
    """Raise `MemberError` if `member` may not join the `members` of its run, so far.

    A server or a sampler must agree with the last trainer, a trainer with all live servers and samplers. The message
    names the first option or package that differs, and both values.
    """
    if member.role == "train":
        others = [other for other in members if other.role != "train" and other.state == "live"]
    else:
        others = [other for other in members if other.role == "train"][-1:]
    for other in others:
        for what, mine, theirs in _differences(member, other):
            raise MemberError(
                f"this process cannot join run '{member.run_id}': {what} is {mine} here, and {theirs} in {other.name}; "
                "start both with the same config and the same packages"
            )


def check_tasks(member: Member, members: Sequence[Member]) -> None:
    """Raise `UsageError` if a task file, or what orders the tasks, has changed since the run was last trained.

    The order of the tasks depends on their number, the seed and `data.shuffle`, so a run would not go on where it was.
    Another file, named by the config or an override, is the user's decision.
    """
    last = next((other for other in reversed(members) if other.role == "train"), None)
    if last is None:
        return
    for name in _ORDERING:
        mine, theirs = (side.report.get(OPTIONS, {}).get(name) for side in (member, last))
        if theirs is not None and mine != theirs:
            raise UsageError(
                f"{name}: run '{member.run_id}' was last trained with {_shown(theirs)}, and cannot go on with "
                f"{_shown(mine)}: its tasks would come in another order, some too often. Leave it as it was, or start "
                "a new run from a checkpoint with `runs fork`"
            )
    before: Mapping[str, Mapping[str, Any]] = last.report.get(TASKS, {})
    for name, now in member.report[TASKS].items():
        then = before.get(name)
        if then is not None and then["source"] == now["source"] and then["digest"] != now["digest"]:
            raise UsageError(
                f"{name}: the tasks of {now['source']} have changed since run '{member.run_id}' was last trained "
                f"({then['count']} tasks with the digest {then['digest'][:12]}, now {now['count']} with "
                f"{now['digest'][:12]}); put the file back, or start a new run from a checkpoint with model.path"
            )


def _shared(config: Mapping[str, Any], names: Sequence[str]) -> Iterator[tuple[str, Any]]:
    for name in names:
        value: Any = config
        for part in name.split("."):
            value = value[part]
        yield from ((leaf, found) for leaf, found in _leaves(name, value) if leaf not in _OWN)


def _leaves(name: str, value: object) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        for key in value:
            yield from _leaves(f"{name}.{key}", value[key])
    else:
        yield name, list(value) if isinstance(value, tuple) else value


def _differences(one: Member, other: Member) -> Iterator[tuple[str, object, object]]:
    """Yield name and both values of each option, task set and package in which two members differ."""
    # Each role shares only what it uses.
    sections = set(_OF_ROLE[one.role]) & set(_OF_ROLE[other.role])
    mine, theirs = one.report.get(OPTIONS, {}), other.report.get(OPTIONS, {})
    for name in sorted(mine.keys() | theirs.keys()):
        if _section(name) in sections and mine.get(name) != theirs.get(name):
            yield name, _shown(mine.get(name)), _shown(theirs.get(name))
    ours, others = one.report.get(TASKS, {}), other.report.get(TASKS, {})
    for name in sorted(ours.keys() & others.keys()):
        if ours[name]["digest"] != others[name]["digest"]:
            yield f"{name} (the tasks themselves)", _counted(ours[name]), _counted(others[name])
    for name in sorted(one.packages.keys() & other.packages.keys()):
        if one.packages[name] != other.packages[name]:
            yield f"the package {name}", one.packages[name], other.packages[name]


def _section(name: str) -> str:
    """Return the shared option, of those in `_OF_ROLE`, to which a leaf belongs."""
    return next(option for option in _OF_ROLE["train"] if name == option or name.startswith(f"{option}."))


def _shown(value: object) -> str:
    return "not set" if value is None else json.dumps(value, ensure_ascii=False)


def _counted(found: Mapping[str, Any]) -> str:
    return f"{found['count']} tasks with the digest {found['digest'][:12]}"


def _task_sets(components: RunComponents) -> dict[str, dict[str, Any]]:
    found = {}
    for key, source in components.config.data.sources.items():
        name = key.removeprefix("data.").removeprefix("eval.")
        tasks = components.tasks if key == "data.train" else components.eval_sets[name]
        # The file's name without its folder: other machines may have it elsewhere.
        named = Path(source.use).name + (f" {_shown(source.options)}" if source.options else "")
        found[key] = {"source": named, "count": len(tasks), "digest": _digest_of(tasks)}
    return found


def _digest_of(tasks: Sequence[Task]) -> str:
    digest = hashlib.blake2b(digest_size=16)
    for task in tasks:
        fields = [task.id, dict(task.data), task.answer, task.scorer, task.answer_schema]
        digest.update(json.dumps(fields, sort_keys=True, default=str).encode() + b"\n")
    return digest.hexdigest()


def _digest(text: str) -> str:
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def _packages(used: Iterable[str]) -> dict[str, str]:
    """Return the versions of core and of the packages in descriptions such as `agentrl-math==0.1.0 module:attr`."""
    found = (re.match(r"([\w.-]+)==(\S+) ", description) for description in used)
    return {"agentrl-core": core_version()} | {match[1]: match[2] for match in found if match}
