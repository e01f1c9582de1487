"""What every run begins with, whatever it trains by: its row in the store, and the policy's folder."""

from __future__ import annotations

import asyncio
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agentrl_core import config as configs
from agentrl_core.api.stores import RunRow
from agentrl_core.config.invocation import command_line, near
from agentrl_core.config.schema import Component
from agentrl_core.errors import ConfigError, RunError, UsageError
from agentrl_core.models.folder import no_model_in
from agentrl_core.stores.files import flush_to_disk, make_private

if TYPE_CHECKING:
    from agentrl_core.api.stores import ResumePoint, Store
    from agentrl_core.run.directory import RunDirectory
    from agentrl_core.run.parts import Parts


async def announce(store: Store, parts: Parts[Any], run_id: str) -> None:
    """Enter the run into the store."""
    row = RunRow(
        id=run_id,
        created_at=time.time(),
        status="running",
        config=configs.dump(parts.config),
        components=parts.used,
    )
    await store.create_run(row)
    await store.flush()


def newest_checkpoint(store: Store, directory: RunDirectory, notice: Callable[[str], None]) -> tuple[int, Path] | None:
    """Return step and folder of the newest checkpoint whose steps the store has, too.

    A machine that loses its power may lose what the store wrote last. Checkpoints of steps that are gone with it are
    put aside, which `notice` is told: the groups behind them would be sampled and trained once more. Raises
    `UsageError` where no other is left.
    """
    checkpoints = directory.all_checkpoints()
    if not checkpoints:
        return None
    asyncio.run(_known_status(store, directory))
    live = {row.step: row.version for row in asyncio.run(store.steps(directory.name)) if not row.voided}
    gap = ""
    for place, (step, path) in enumerate(checkpoints):
        missing = _missing(step, path, live)
        if not missing:
            if gap:
                kept = ", ".join(directory.put_aside(other).name for _, other in checkpoints[:place])
                notice(
                    f"the store does not know all steps of the newest checkpoint ({gap}), as after a power cut; going "
                    f"back to the checkpoint of step {step}. What is later is kept in {directory.checkpoints}: {kept}"
                )
            return step, path
        gap = gap or missing
    raise UsageError(
        f"run '{directory.name}' cannot go on from its checkpoints: {directory.database} does not know their steps "
        f"({gap}), as after a power cut, and the groups behind them would be trained once more. Put back the store "
        f"that belongs to them, or start a new run with model.path={checkpoints[0][1]}"
    )


def _missing(step: int, path: Path, live: Mapping[int, int]) -> str:
    """Say which of the steps behind a checkpoint the store lacks; empty where it has them all."""
    from agentrl_core.training.checkpoint import read_state

    version = int(read_state(path)["version"])
    done = next((number for number in range(step) if number + 1 not in live), step)
    if done < step:
        return f"it has steps up to {done}, the checkpoint is of step {step}"
    if step and live[step] != version:
        return f"its step {step} gave version {live[step]}, that of the checkpoint version {version}"
    return ""


def check_unfinished(store: Store, directory: RunDirectory, step: int, *, steps: int) -> None:
    """Refuse to go on after `step` with a run that has all its `steps`."""
    if step >= steps and asyncio.run(_known_status(store, directory)) == "finished":
        more = f"trainer.steps={2 * step}"
        raise UsageError(
            f"run '{directory.name}' is finished: {step} of {steps} steps; "
            f"give it more with: {command_line('runs', 'resume', directory.reference, more)}"
        )


async def _known_status(store: Store, directory: RunDirectory) -> str:
    """How the run ended; a checkpoint without its store would start the order of tasks and the versions anew."""
    known = {run.id: run.status for run in await store.runs()}
    if directory.name not in known:
        raise UsageError(
            f"{directory.path} has checkpoints, but its store {directory.database} does not know the run "
            f"'{directory.name}' (it knows: {', '.join(known) or 'none'}); put the store back, or start a new run "
            "with model.path set to the checkpoint"
        )
    return known[directory.name]


def loading(model_dir: Path) -> str:
    """Say which model is being loaded, and how large it is: it takes seconds per GB, and torch itself some."""
    weights = [path for form in ("*.safetensors", "*.bin") for path in model_dir.glob(form)]
    size = sum(path.stat().st_size for path in weights)
    written = f"{size / 1e9:.1f} GB" if size >= 1e8 else f"{size / 1e6:.1f} MB"  # noqa: PLR2004  (0.1 GB)
    return f"loading torch and the model {near(model_dir)} ({written})"


async def rewind(store: Store, parts: Parts[Any], run_id: str, step: int) -> ResumePoint:
    """Void what came after `step`, and publish its weights as a version that the run never had."""
    if run_id not in {run.id for run in await store.runs()}:  # killed before the store knew of it
        await announce(store, parts, run_id)
    await store.void_after(run_id, step)
    point = await store.resume_point(run_id, step)
    await store.update_run(run_id, status="running")
    await store.add_version(run_id, point.last_version + 1, step=step)
    return point


def model_directory(
    parts: Parts[Any], directory: RunDirectory, conversations: Callable[[], Sequence[Mapping[str, Any]]]
) -> Path:
    """The policy before training: the config's own folder, or one that its builder fills.

    `conversations` are what a built tokenizer is trained on.
    """
    config, where = parts.config, parts.where
    if config.model.path is not None:
        if problem := no_model_in(config.model.path, parts.base_dir):
            raise ConfigError(f"{where('model.path')}: {problem}")
        return (parts.base_dir / Path(config.model.path).expanduser()).resolve()
    if config.model.use is None:
        raise ConfigError(f"{where('model')}: name the policy: `path: FOLDER` or `use: tiny`")
    if not (directory.model / "config.json").is_file():  # a resumed run has it
        with _appearing(directory.model) as draft:
            builder = Component(config.model.use, config.model.options)
            parts.build(
                "models",
                "model",
                builder,
                directory=draft,
                seed=config.seed,
                conversations=conversations(),
            )()
    return directory.model


@contextmanager
def _appearing(folder: Path) -> Iterator[Path]:
    """Give the path of a folder to make, which appears as `folder` when it is whole; `RunError` where that fails."""
    from safetensors import SafetensorError

    draft = folder.with_name(f".{folder.name}.draft")
    shutil.rmtree(draft, ignore_errors=True)  # of a process that was killed
    try:
        yield draft
        make_private(draft)
        flush_to_disk(draft)
        shutil.rmtree(folder, ignore_errors=True)  # half of one, which earlier versions left
        draft.replace(folder)
    except (OSError, SafetensorError) as error:
        raise RunError(
            f"cannot build the policy in {folder}: {error}; make room there, or set output_dir elsewhere"
        ) from error
    finally:
        shutil.rmtree(draft, ignore_errors=True)
