"""Reader of `task.toml`, version 1.4 of Harbor's format and earlier, with its defaults.

What this package cannot do is refused here with a reason, because a task without it would be another task.
"""

from __future__ import annotations

import math
import os
import re
import tomllib
from collections.abc import Mapping
from typing import Any, Final, Literal

import attrs

NetworkMode = Literal["public", "no-network"]
_TEMPLATE: Final = re.compile(r"\$\{([^}:]+)(?::-(.*))?\}")
_SIZE: Final = re.compile(r"([\d.]+)\s*([KMG])B?", re.IGNORECASE)
_MB: Final = {"K": 1 / 1024, "M": 1, "G": 1024}
_GENERATIONS: Final = ("1.0", "1.1", "1.2", "1.3", "1.4")


@attrs.frozen(kw_only=True)
class Healthcheck:
    """Command that must succeed before the agent begins."""

    command: str
    interval_s: float = 5.0
    timeout_s: float = 30.0
    start_period_s: float = 0.0
    """Time during which failures do not count."""
    retries: int = 3


@attrs.frozen(kw_only=True)
class EnvironmentConfig:
    """The section `[environment]`, or `[verifier.environment]`."""

    docker_image: str | None = None
    """Image to use as it is; None: `Dockerfile` of the folder is built."""
    build_timeout_s: float = 600.0
    network: NetworkMode = "public"
    cpus: float | None = None
    memory_mb: int | None = None
    storage_mb: int | None = None
    workdir: str | None = None
    """Working directory of commands; None: the image's."""
    env: Mapping[str, str] = attrs.field(factory=dict)
    """Variables as written; `resolved` replaces `${VAR}`."""
    healthcheck: Healthcheck | None = None


@attrs.frozen(kw_only=True)
class VerifierConfig:
    """The section `[verifier]`."""

    timeout_s: float = 600.0
    env: Mapping[str, str] = attrs.field(factory=dict)
    user: str | None = None
    environment: EnvironmentConfig | None = None
    """Environment of a verifier that does not run in the agent's; None: it does."""
    network: NetworkMode | None = None


@attrs.frozen(kw_only=True)
class TaskConfig:
    """A whole `task.toml`."""

    environment: EnvironmentConfig
    verifier: VerifierConfig
    agent_timeout_s: float | None = None
    agent_user: str | None = None
    artifacts: tuple[str, ...] = ()
    """Paths that a verifier with its own environment gets, beside `/logs/artifacts`."""
    solution_env: Mapping[str, str] = attrs.field(factory=dict)
    keep_processes: bool = False
    """Whether what the agent has started goes on while the verifier runs."""


def read_config(text: str) -> TaskConfig:
    """Return the config of a task; raise ValueError with the key and the reason.

    Unknown keys are ignored, as by Harbor.
    """
    try:
        root = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ValueError(f"not TOML: {error}") from error
    version = str(root.get("schema_version", root.get("version", _GENERATIONS[-1])))
    if version not in _GENERATIONS:
        raise ValueError(f"schema_version: expected one of {', '.join(_GENERATIONS)}, found {version}")
    if root.get("steps"):
        raise ValueError("steps: tasks with several steps are not supported")
    environment, agent, verifier = (_table(root, name) for name in ("environment", "agent", "verifier"))
    _check_phase(agent, "agent", environment)
    own = _verifier_environment(verifier, environment)
    _check_phase(verifier, "verifier", environment if own is None else None)
    if verifier.get("collect"):
        raise ValueError("verifier.collect: commands that collect artifacts are not supported")
    return TaskConfig(
        environment=_environment(environment, "environment"),
        verifier=VerifierConfig(
            timeout_s=_seconds(verifier, "timeout_sec", "verifier") or 600.0,
            env=_env(verifier, "verifier"),
            user=_user(verifier, "verifier"),
            environment=own,
        ),
        agent_timeout_s=_seconds(agent, "timeout_sec", "agent"),
        agent_user=_user(agent, "agent"),
        artifacts=_artifacts(root.get("artifacts", [])),
        solution_env=_env(_table(root, "solution"), "solution"),
        keep_processes=_keep_processes(_table(root, "metadata")),
    )


def resolved(env: Mapping[str, str]) -> dict[str, str]:
    """Return variables with `${VAR}` and `${VAR:-default}` taken from this process; ValueError if one is not set."""
    found = {}
    for name, value in env.items():
        if match := _TEMPLATE.fullmatch(value):
            variable, default = match.groups()
            value = os.environ.get(variable, default)  # noqa: PLW2901 - the same value, resolved
            if value is None:
                raise ValueError(f"the task needs the environment variable {variable}, which is not set")
        found[name] = value
    return found


def _environment(table: Mapping[str, Any], where: str) -> EnvironmentConfig:
    if str(table.get("os", "linux")).lower() != "linux":
        raise ValueError(f"{where}.os: only linux is supported")
    for key in ("gpus", "tpu", "mcp_servers", "skills_dir"):
        if table.get(key):
            raise ValueError(f"{where}.{key}: not supported")
    health = table.get("healthcheck")
    return EnvironmentConfig(
        docker_image=_text(table, "docker_image", where),
        build_timeout_s=_seconds(table, "build_timeout_sec", where) or 600.0,
        network=_network(table, where) or "public",
        cpus=_number(table, "cpus", where),
        memory_mb=_megabytes(table, "memory", where),
        storage_mb=_megabytes(table, "storage", where),
        workdir=_text(table, "workdir", where),
        env=_env(table, where),
        healthcheck=None if health is None else _healthcheck(health, f"{where}.healthcheck"),
    )


def _verifier_environment(verifier: Mapping[str, Any], environment: Mapping[str, Any]) -> EnvironmentConfig | None:
    """Return the environment of a separate verifier; without one of its own it is a fresh copy of the agent's."""
    own, mode = verifier.get("environment"), verifier.get("environment_mode")
    if mode not in {None, "shared", "separate"}:
        raise ValueError(f"verifier.environment_mode: expected shared or separate, found {mode!r}")
    if mode == "shared" and own is not None:
        raise ValueError("verifier.environment: not possible with environment_mode = 'shared'")
    if own is None and mode != "separate":
        return None
    if own is not None and not isinstance(own, Mapping):
        raise ValueError(f"verifier.environment: expected a table, found {own!r:.40}")
    return _environment(environment if own is None else own, "verifier.environment")


def _check_phase(table: Mapping[str, Any], where: str, environment: Mapping[str, Any] | None) -> None:
    """Refuse a network mode of one phase that differs from the container's: it cannot change while it runs."""
    network = _network(table, where)
    if network is not None and network != (_network(environment or {}, "environment") or "public"):
        raise ValueError(f"{where}.network_mode: must be that of its environment; a change in between is not supported")


def _network(table: Mapping[str, Any], where: str) -> NetworkMode | None:
    mode = table.get("network_mode")
    if mode is None and isinstance(table.get("allow_internet"), bool):
        return "public" if table["allow_internet"] else "no-network"
    if mode == "allowlist":
        raise ValueError(f"{where}.network_mode: 'allowlist' cannot be enforced; use public or no-network")
    if mode not in {None, "public", "no-network"}:
        raise ValueError(f"{where}.network_mode: expected public, no-network or allowlist, found {mode!r}")
    return mode


def _healthcheck(table: Any, where: str) -> Healthcheck:
    command = table.get("command") if isinstance(table, Mapping) else None
    if not isinstance(command, str):
        raise ValueError(f"{where}.command: expected a shell command")  # noqa: TRY004 - as of all wrong values
    given = {
        name: _seconds(table, f"{key}_sec", where)
        for name, key in (("interval_s", "interval"), ("timeout_s", "timeout"), ("start_period_s", "start_period"))
    }
    retries = _number(table, "retries", where)
    found: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    return Healthcheck(command=command, retries=3 if retries is None else int(retries), **found)


def _keep_processes(metadata: Mapping[str, Any]) -> bool:
    """Return the one key that is ours: Harbor has none for it, and leaves `[metadata]` to others."""
    own = metadata.get("agentrl", {})
    keep = own.get("keep_processes", False) if isinstance(own, Mapping) else None
    if not isinstance(keep, bool):
        raise ValueError("metadata.agentrl: expected keep_processes = true or false")  # noqa: TRY004 - as of all wrong values
    return keep


def _artifacts(items: Any) -> tuple[str, ...]:
    paths = []
    for index, item in enumerate(items if isinstance(items, list) else [items]):
        path = item.get("source") if isinstance(item, Mapping) else item
        if not isinstance(path, str) or not path.startswith("/") or ".." in path.split("/"):
            raise ValueError(f"artifacts.{index}: expected an absolute path without '..', found {path!r:.60}")
        if isinstance(item, Mapping) and item.get("service", "main") != "main":
            raise ValueError(f"artifacts.{index}.service: only main is supported")
        paths.append(path)
    return tuple(paths)


def _table(root: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    table = root.get(name, {})
    if not isinstance(table, Mapping):
        raise ValueError(f"{name}: expected a table, found {table!r:.40}")  # noqa: TRY004 - as of all wrong values
    return table


def _env(table: Mapping[str, Any], where: str) -> dict[str, str]:
    env = table.get("env", {})
    if not isinstance(env, Mapping) or not all(isinstance(value, str) for value in env.values()):
        raise ValueError(f"{where}.env: expected a table of texts")
    return dict(env)


def _text(table: Mapping[str, Any], name: str, where: str) -> str | None:
    value = table.get(name)
    if value is not None and (not isinstance(value, str) or not value):
        raise ValueError(f"{where}.{name}: expected a text, found {value!r:.40}")
    return value


def _user(table: Mapping[str, Any], where: str) -> str | None:
    value = table.get("user")
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else _text(table, "user", where)


def _number(table: Mapping[str, Any], name: str, where: str) -> float | None:
    value = table.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value < 0:
        raise ValueError(f"{where}.{name}: expected a number of at least 0, found {value!r:.40}")
    return value


def _seconds(table: Mapping[str, Any], name: str, where: str) -> float | None:
    return _number(table, name, where)


def _megabytes(table: Mapping[str, Any], name: str, where: str) -> int | None:
    """Return a size in MB: `memory_mb`, or the older `memory = "2G"`."""
    older = table.get(name)
    if isinstance(older, str):
        if (match := _SIZE.fullmatch(older.strip())) is None:
            raise ValueError(f"{where}.{name}: expected a size such as '2G' or '512M', found {older!r:.40}")
        return int(float(match[1]) * _MB[match[2].upper()])
    value = _number(table, f"{name}_mb", where)
    return None if value is None else int(value)
