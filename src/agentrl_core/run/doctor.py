"""Diagnosis behind `agentrl doctor`: check the installation, then a config, then run one real episode of its agent."""

from __future__ import annotations

import asyncio
import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING

import attrs

from agentrl_core import config as configs
from agentrl_core.config.invocation import command_line, pip_install
from agentrl_core.errors import AgentRLError
from agentrl_core.gateway.serving.server import bind
from agentrl_core.models.placement import device_of
from agentrl_core.plugins.discovery import core_version
from agentrl_core.plugins.manager import load_registry
from agentrl_core.plugins.references import one_line
from agentrl_core.run.advice import Setting, advice, num_parameters
from agentrl_core.run.checks import Checks
from agentrl_core.run.components import resolve
from agentrl_core.run.cpu_budget import usable_cores
from agentrl_core.run.directory import RunDirectory
from agentrl_core.run.in_process import InProcessSampling
from agentrl_core.run.loss import is_pretrained_model
from agentrl_core.run.membership import Membership
from agentrl_core.run.memory import Load, ModelShape, gigabytes, parts
from agentrl_core.run.resources import Devices, described, fits, fixed_parts, held_bytes
from agentrl_core.run.roles.agreement import new_member
from agentrl_core.run.start import untrained_start
from agentrl_core.run.stores import check_store, scratch_store
from agentrl_core.run.tools import examine_tasks, servers_down
from agentrl_core.run.try_step import try_step as tried_step
from agentrl_core.types import Outcome

if TYPE_CHECKING:
    from agentrl_core.api.stores import Store
    from agentrl_core.config import LoadedConfig
    from agentrl_core.config.schema import RunConfig
    from agentrl_core.run.components import RunComponents
    from agentrl_core.training.learner import Learner
    from agentrl_core.types import Record, Task

_PYTHONS = ((3, 11), (3, 14))
"""Oldest supported Python version, and the first one that is too new."""
_SHOWN_VERSIONS = ("torch", "transformers", "tokenizers", "httpx2", "aiohttp")
_LITTLE_BYTES = 2**30
"""Free disk space below which checkpoints soon fail."""


@attrs.frozen(kw_only=True)
class Finding:
    """Result of one check."""

    check: str
    """Name of the check: versions, plugins, port, disk, config, agent, tools, tasks, device, store, model, servers,
    template, advice, call, memory or step."""
    ok: bool
    told: str
    """Description of the result."""
    fix: str = ""
    """Instruction that fixes the problem; empty if there is none."""


def examine(config: Path | None = None, overrides: Sequence[str] = (), *, try_step: bool = False) -> Iterator[Finding]:
    """Yield the findings about this installation and, given a config, about its run; one by one as they are made.

    The last check runs one episode of the config's agent on its first task, with the policy before any training, in a
    temporary folder; with `try_step`, one training step at the largest shape on made-up tokens comes after it. Checks
    that depend on a failed one are skipped.
    """
    yield _versions()
    yield from _plugins()
    if config is None:
        yield _port("127.0.0.1", 0)
        return
    try:
        loaded = configs.load(config, overrides)
    except AgentRLError as error:
        yield _wrong(
            "config",
            error,
            f"correct the file; `{command_line('config', 'show', str(config))}` prints all options with their defaults",
        )
        return
    port = _port(loaded.run.gateway.host, loaded.run.gateway.port)
    yield port
    yield _disk(Path(loaded.run.output_dir))
    if not port.ok:
        # The port is reported already. Try the rest on a free port, so that one problem does not hide the others.
        gateway = attrs.evolve(loaded.run.gateway, host="127.0.0.1", port=0)
        loaded = attrs.evolve(loaded, run=attrs.evolve(loaded.run, gateway=gateway))
    yield from _run(loaded, config, try_step=try_step)


def _versions() -> Finding:
    found = [f"Python {sys.version_info.major}.{sys.version_info.minor}.{sys.version_info.micro}"]
    found.append(f"agentrl-core {core_version()}")
    missing = []
    for name in _SHOWN_VERSIONS:
        try:
            found.append(f"{name} {version(name)}")
        except PackageNotFoundError:
            missing.append(name)
    told = ", ".join(found)
    if missing:
        fix = pip_install("--force-reinstall", "agentrl-core")
        return Finding(check="versions", ok=False, told=f"{told}; not installed: {', '.join(missing)}", fix=fix)
    oldest, beyond = _PYTHONS
    if not oldest <= sys.version_info[:2] < beyond:
        fix = f"use Python {oldest[0]}.{oldest[1]} to {beyond[0]}.{beyond[1] - 1}"
        return Finding(check="versions", ok=False, told=told, fix=fix)
    return Finding(check="versions", ok=True, told=told)


def _plugins() -> Iterator[Finding]:
    registry = load_registry()
    broken = [package for package in registry.packages if package.status == "error"]
    for package in broken:
        yield Finding(
            check="plugins",
            ok=False,
            told=f"{package.distribution} {package.version} {package.trouble}",
            fix="install the missing or a compatible package "
            f"(`{command_line('plugins', 'show', package.distribution)}` shows the traceback), "
            f"or disable this plugin: AGENTRL_BLOCK_PLUGINS={package.distribution}",
        )
    for clash in registry.clashes():
        yield Finding(check="plugins", ok=True, told=clash)
    sound = [f"{item.distribution} {item.version}" for item in registry.packages if item.status == "ok"]
    if not broken:
        yield Finding(check="plugins", ok=True, told=", ".join(sound))


def _port(host: str, port: int) -> Finding:
    try:
        listening = bind(host, port)
    except AgentRLError as error:
        return _wrong("port", error, "set gateway.port: 0 to use any free port, or end the process that holds this one")
    with listening:
        return Finding(check="port", ok=True, told=f"{host}:{listening.getsockname()[1]} is free")


def _disk(output_dir: Path) -> Finding:
    folder = next(path for path in (output_dir.resolve(), *output_dir.resolve().parents) if path.is_dir())
    free = shutil.disk_usage(folder).free
    told = f"{free / 2**30:.1f} GiB free for {output_dir}"
    try:
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        fix = "set output_dir to a folder that this user may write to"
        return Finding(check="disk", ok=False, told=f"cannot write to {folder}: {error.strerror}", fix=fix)
    return Finding(
        check="disk",
        ok=free >= _LITTLE_BYTES,
        told=told,
        fix="" if free >= _LITTLE_BYTES else "free disk space there",
    )


def _run(loaded: LoadedConfig[RunConfig], config: Path, *, try_step: bool) -> Iterator[Finding]:
    """Check everything that the config names, and run one episode."""
    checks = Checks(loaded, load_registry(loaded.run.plugins.block), load_datasets=True, binds=False)
    problems = list(dict.fromkeys([*checks.all(), *checks.workflow()]))
    for problem in problems:
        yield Finding(
            check="config",
            ok=False,
            told=problem,
            fix=f"correct it there; `{command_line('config', 'show', str(config))}` prints every option",
        )
    if problems:
        return
    yield Finding(check="config", ok=True, told="every component it names is installed and accepts its options")
    for note in checks.notes:
        yield Finding(check="config", ok=True, told=f"note: {note}")
    try:
        components = resolve(loaded)
    except AgentRLError as error:
        yield _wrong("agent", error, "correct the agent that `workflow` names in the config")
        return
    if components.workflow is not None:
        yield Finding(check="agent", ok=True, told=components.workflow.name)
    if down := servers_down(loaded):
        yield Finding(check="tools", ok=False, told=down, fix="start that server, or correct its entry there")
        return
    yield from _tools(loaded, components)
    try:
        devices = Devices.of(loaded.run)
    except AgentRLError as error:
        yield _wrong("device", error, "correct that option")
        return
    yield Finding(check="device", ok=True, told=described(loaded.run, devices))
    short = list(_too_large(components, devices))
    yield from short
    if not short:
        yield from _rehearsal(components, devices, try_step=try_step)


def _tools(loaded: LoadedConfig[RunConfig], components: RunComponents) -> Iterator[Finding]:
    if servers := loaded.run.tools.servers:
        yield Finding(check="tools", ok=True, told=f"{len(servers)} server{'s' if len(servers) > 1 else ''} started")
        tasks = [task for some in (components.tasks, *components.eval_sets.values()) for task in some or ()]
        for problem in examine_tasks(loaded, tasks):
            yield Finding(check="tasks", ok=False, told=problem)


def _too_large(components: RunComponents, devices: Devices) -> Iterator[Finding]:
    """Yield a finding for each device that cannot even hold the weights of a model in a folder, before it is loaded."""
    path = components.config.model.path
    if path is None:
        return
    try:
        shape = ModelShape.read(components.base_dir / Path(path).expanduser())
    except (OSError, ValueError):
        return  # loading the model says what is wrong with it
    refers = "reference" in components.loss.needs
    for fit in fits(fixed_parts(components.config, shape, devices, refers=refers), held=held_bytes()):
        if not fit.fits:
            yield Finding(check="memory", ok=False, told=fit.told, fix=fit.fix)


def _memory(components: RunComponents, devices: Devices, learner: Learner, load: Load) -> Iterator[Finding]:
    shape = ModelShape.of(learner.weights().module)
    found = list(
        parts(
            components.config,
            shape,
            load,
            learner=devices.learner,
            engine=devices.engine,
            refers="reference" in components.loss.needs,
        )
    )
    for fit in fits(found, held=held_bytes()):
        yield Finding(check="memory", ok=fit.fits, told=fit.told, fix=fit.fix)


def _step(learner: Learner, load: Load, max_tokens: int) -> Finding:
    """Train one step at the largest shape; the learner is thrown away afterwards."""
    vocabulary = ModelShape.of(learner.weights().module).vocabulary
    try:
        tried = tried_step(learner, load, vocabulary=vocabulary, max_tokens=max_tokens)
    except (AgentRLError, RuntimeError, MemoryError) as error:  # torch raises RuntimeError if it gets no memory
        fix = "lower trainer.max_tokens_per_microbatch, or set trainer.gradient_checkpointing: true"
        return Finding(check="step", ok=False, told=f"a step of {load.pass_:,} tokens failed: {error}", fix=fix)
    told = (
        f"a pass of {tried.tokens:,} tokens with records of {load.record:,} took {tried.seconds:.1f} s with the update;"
        f" at most {gigabytes(tried.peak_bytes)} were in use on {learner.device}"
    )
    return Finding(check="step", ok=True, told=told)


def _rehearsal(components: RunComponents, devices: Devices, *, try_step: bool) -> Iterator[Finding]:
    """Build all parts of a run in a temporary folder, and run one episode."""
    with tempfile.TemporaryDirectory(prefix="agentrl-doctor-") as folder, ExitStack() as closing:
        directory = RunDirectory.create(Path(folder), "doctor")
        try:
            check_store(components, directory)
        except AgentRLError as error:
            yield _wrong("store", error, "correct the config's `store`")
            return
        yield Finding(check="store", ok=True, told=components.used[f"stores:{components.config.store.use}"])
        store = scratch_store(directory)
        closing.callback(lambda: asyncio.run(store.close()))
        try:
            start = untrained_start(components, directory, store)
            both = [new_member(components, directory.name, role) for role in ("train", "sample")]
            membership = closing.enter_context(Membership(store, both))
            membership.join()
            notices: list[str] = []
            side = InProcessSampling(
                components,
                start,
                directory.name,
                membership=membership,
                admin_key_file=directory.admin_key,
                log_dir=directory.logs,
                on_scored=lambda _: None,
                notice=notices.append,
            )
        except AgentRLError as error:
            yield _wrong("model", error, "correct the config's `model` or `engine`")
            return
        closing.callback(side.close)
        context = side.engine.context_length
        yield Finding(check="model", ok=True, told=f"{_name(components)}, {context:,} tokens of context")
        if side.gateway.length_notice:
            yield Finding(check="model", ok=True, told=side.gateway.length_notice)
        for server in getattr(side.engine, "servers", ()):
            yield Finding(check="servers", ok=True, told=server)
        yield Finding(check="template", ok=True, told=side.gateway.history_notice)
        if side.gateway.tools_notice:
            yield Finding(check="template", ok=True, told=f"note: {side.gateway.tools_notice}")
        for text in advice(components.config, _setting(components, start.model_dir, side)):
            yield Finding(check="advice", ok=True, told=text)
        with directory.logging_to("doctor", modules=components.registry.modules):
            yield from _call(components, side, store, directory.name)
            record = _longest_record(store, directory.name, side)
            load = Load.of(components.config, record=record, joined=start.learner.joined_tokens)
            yield from _memory(components, devices, start.learner, load)
            if try_step:
                yield _step(start.learner, load, side.gateway.max_tokens)
            for notice in notices:
                yield Finding(
                    check="agent", ok=False, told=notice, fix="change that code, or set rollout.agent.mode: subproc"
                )


def _call(components: RunComponents, side: InProcessSampling, store: Store, run_id: str) -> Iterator[Finding]:
    task = _first_task(components)
    if task is None or components.workflow is None:
        yield Finding(
            check="call", ok=True, told="not tried: with rollout.agent.mode online, agents connect by themselves"
        )
        return
    try:
        side.evaluate({"doctor": [task]}, 1)
    except AgentRLError as error:
        yield _wrong("call", error, "")
        return
    (record,) = asyncio.run(store.records(run_id))
    usage = asyncio.run(store.usage(run_id)).get(record.id)
    yield _judged(record, task, 0 if usage is None else usage.calls)


def _longest_record(store: Store, run_id: str, side: InProcessSampling) -> int:
    """Return the tokens that a record may have: those of the tried one's prompts and a whole reply for each call.

    Without a tried record, or with prompts as long as the context, it is the context.
    """
    records = asyncio.run(store.records(run_id))
    calls = [call for one in asyncio.run(store.episodes([item.id for item in records])) for call in one.interactions]
    if not calls:
        return int(side.engine.context_length)
    prompts = sum(len(call.prompt_ids) for call in calls)
    return min(int(side.engine.context_length), prompts + len(calls) * side.gateway.max_tokens)


def _judged(record: Record, task: Task, calls: int) -> Finding:
    seconds = record.finished_at - record.started_at
    done = f"task '{task.id}': {calls} LLM call{'s' if calls != 1 else ''} in {seconds:.1f} s"
    if record.outcome is Outcome.SCORED:
        return Finding(check="call", ok=True, told=f"{done}, reward {record.reward:g} before any training")
    return Finding(
        check="call",
        ok=False,
        told=f"{done}, {record.outcome.value} ({record.reason or 'no reason'}): {record.detail}",
        fix="correct the agent or its scorer, and try again until one episode ends with a reward",
    )


def _name(components: RunComponents) -> str:
    model = components.config.model
    if model.path is None and is_pretrained_model(components.loaded, components.registry):
        return f"the pretrained model that '{model.use}' writes"
    return model.path or f"a new model, built from nothing by '{model.use}'"


def _setting(components: RunComponents, model_dir: Path, side: InProcessSampling) -> Setting:
    """Return what advice depends on beside the config."""
    config = components.config
    output = Path(config.output_dir).resolve()
    folder = next(path for path in (output, *output.parents) if path.is_dir())
    return Setting(
        parameters=num_parameters(model_dir),
        reply_tokens=side.gateway.max_tokens,
        pretrained=is_pretrained_model(components.loaded, components.registry),
        on_cpu=device_of(config.trainer.device, option="trainer.device").type == "cpu",
        cores=usable_cores(),
        free_bytes=shutil.disk_usage(folder).free,
    )


def _first_task(components: RunComponents) -> Task | None:
    for tasks in (components.tasks, *components.eval_sets.values()):
        if tasks:
            return tasks[0]
    return None


def _wrong(check: str, error: AgentRLError, fix: str) -> Finding:
    return Finding(check=check, ok=False, told=str(error) or one_line(error), fix=fix)
