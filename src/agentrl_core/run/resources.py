"""Devices, types, threads and memory of a run, as `agentrl doctor` tells them before the run begins."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import attrs

from agentrl_core.models.placement import device_of
from agentrl_core.run.cpu_budget import learner_threads, usable_cores
from agentrl_core.run.memory import Load, Part, capacity, embedded, gigabytes, needed_on, parts, remedy, summary

if TYPE_CHECKING:
    import torch

    from agentrl_core.config.schema import RunConfig
    from agentrl_core.run.memory import ModelShape


@attrs.frozen(kw_only=True)
class Devices:
    """Devices that a config chooses on this machine."""

    learner: torch.device
    engine: torch.device | None
    """None if the engine is not in this process."""

    @classmethod
    def of(cls, config: RunConfig) -> Devices:
        """Return the devices; raises `ConfigError` if this machine lacks one."""
        engine = None
        if embedded(config):
            engine = device_of(config.engine.options.get("device") or "auto", option="engine.device")
        return cls(learner=device_of(config.trainer.device, option="trainer.device"), engine=engine)


@attrs.frozen(kw_only=True)
class Fit:
    """Whether a run's parts fit into the memory of a device."""

    fits: bool
    told: str
    fix: str = ""


def described(config: RunConfig, devices: Devices) -> str:
    """Return one line about what was found on this machine, and what learner and engine use of it."""
    cores = usable_cores()
    threads, _ = learner_threads(config, cores)
    learner = f"learner on {devices.learner} in {config.model.dtype}"
    if config.model.dtype == "bfloat16":
        learner += " with float32 master weights"
    if devices.learner.type == "cpu":
        learner += f", {_threads(threads)}"
    if devices.engine is None:
        engine = f"engine {config.engine.use} in other processes"
    else:
        options = config.engine.options
        engine = f"engine on {devices.engine} in {options.get('dtype') or config.model.dtype}"
        if devices.engine.type == "cpu":
            engine += f", {_threads(options.get('threads', 1))}"
    return f"found {cores} cores and {_gpus()}; {learner}; {engine}"


def fixed_parts(config: RunConfig, shape: ModelShape, devices: Devices, *, refers: bool) -> Sequence[Part]:
    """Return the parts that a run needs even with the shortest records: those of the weights."""
    least = Load(record=1, pass_=1, running=1)
    return list(parts(config, shape, least, learner=devices.learner, engine=devices.engine, refers=refers))


def fits(found: Sequence[Part], *, held: int) -> Iterator[Fit]:
    """Compare the parts with the memory of each device; `held` bytes of the CPU's this process has already."""
    for device in dict.fromkeys(part.device for part in found):
        needed = needed_on(found, device)
        free = capacity(device) + (held if device == "cpu" else _reserved(device))
        told = f"{summary(found, device)}, {gigabytes(free)} free"
        # Estimates are off by up to a quarter.
        tight = " (tight)" if free / 1.25 < needed <= free else ""
        yield Fit(fits=needed <= free, told=told + tight, fix="" if needed <= free else remedy(found, device))


def held_bytes() -> int:
    """Return the resident memory of this process; 0 where the system does not tell."""
    try:
        status = Path("/proc/self/status").read_text(encoding="ascii")
        return next(1024 * int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS:"))
    except OSError:
        return 0


def _reserved(device: str) -> int:
    import torch

    return int(torch.cuda.memory_reserved(torch.device(device)))


def _threads(count: int) -> str:
    return f"{count} thread{'s' if count > 1 else ''}"


def _gpus() -> str:
    import torch

    if not torch.cuda.is_available():
        return "no GPU that torch can use"
    found = [torch.cuda.get_device_properties(index) for index in range(torch.cuda.device_count())]
    return ", ".join(f"cuda:{i} {gpu.name} ({gigabytes(gpu.total_memory)})" for i, gpu in enumerate(found))
