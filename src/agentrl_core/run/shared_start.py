"""Starting points that `run` and `sft` share: the run's row in the store, the policy's folder, the last checkpoint.

`start.py` builds the RL-specific start on top of these functions.
"""

from __future__ import annotations

import asyncio
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agentrl_core import config as configs
from agentrl_core.api.stores import IDENTITY, ORIGIN, RunRow
from agentrl_core.config.component import Component
from agentrl_core.config.invocation import command_line, near
from agentrl_core.errors import ConfigError, RunError, StoreError, UsageError
from agentrl_core.models.folder import no_model_in
from agentrl_core.run.membership import declare_gone
from agentrl_core.stores.files import UNNAMED, flush_to_disk, make_private

if TYPE_CHECKING:
    from agentrl_core.api.stores import ResumePoint, Store
    from agentrl_core.run.component_checks import BuiltComponents
    from agentrl_core.run.directory import RunDirectory
    from agentrl_core.stores.files import Writer


async def announce(
    store: Store, components: BuiltComponents[Any], run_id: str, *, identity: str = "", origin: str = ""
) -> None:
    """Write the row of a new run, with the identity of its folder, into the store, before anything else of it.

    `RunRow.components` says what the row lacks.
    """
    row = RunRow(
        id=run_id,
        created_at=time.time(),
        status="running",
        config=configs.dump_without_passwords(components.config),
        components={
            **components.used,
            **({IDENTITY: identity} if identity else {}),
            **({ORIGIN: origin} if origin else {}),
        },
    )
    await store.create_run(row)
    await store.flush()


async def check_identity(store: Store, directory: RunDirectory) -> None:
    """Raise `StoreError` if the store has a run of this name that belongs to another folder."""
    for run in await store.runs():
        if run.id == directory.name and run.identity != directory.identity:
            raise StoreError(
                f"{store.location} has another run '{run.id}', which does not belong to {directory.path}; start a new "
                "run with another --name, or name another database in the config's section `store`"
            )


def newest_checkpoint(store: Store, directory: RunDirectory, notice: Callable[[str], None]) -> tuple[int, Path] | None:
    """Return step and folder of the newest checkpoint whose steps the store has too; None without any checkpoint.

    A power cut may lose the store's last writes. A checkpoint of lost steps cannot be resumed from: the groups that it
    has trained would be sampled and trained again. Such checkpoints are renamed, and `notice` says so. Raises
    `UsageError` if no usable checkpoint is left.
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
                    f"the store lacks steps of the newest checkpoint ({gap}), as after a power cut; resuming from "
                    f"the checkpoint of step {step}. Later checkpoints are kept in {directory.checkpoints} as {kept}"
                )
            return step, path
        gap = gap or missing
    raise UsageError(
        f"run '{directory.name}' cannot resume from its checkpoints: {store.location} lacks their steps "
        f"({gap}), as after a power cut, so their groups would be trained a second time. Put back the database "
        f"that belongs to them, or start a new run with model.path={checkpoints[0][1]}"
    )


def _missing(step: int, path: Path, live: Mapping[int, int]) -> str:
    """Say which of the steps up to a checkpoint the store lacks; empty if it has them all."""
    from agentrl_core.training.checkpoint import read_state

    version = int(read_state(path)["version"])
    done = next((number for number in range(step) if number + 1 not in live), step)
    if done < step:
        return f"it has the steps up to {done}, the checkpoint is of step {step}"
    if step and live[step] != version:
        return f"its step {step} has policy version {live[step]}, the checkpoint's has {version}"
    return ""


def check_unfinished(store: Store, directory: RunDirectory, step: int, *, steps: int) -> None:
    """Raise `UsageError` for a finished run that has taken all of its `steps`."""
    if step >= steps and asyncio.run(_known_status(store, directory)) == "finished":
        more = f"trainer.steps={2 * step}"
        raise UsageError(
            f"run '{directory.name}' is finished: {step} of {steps} steps; "
            f"to train it further: {command_line('runs', 'resume', directory.reference, more)}"
        )


async def run_status(store: Store, run_id: str) -> str:
    """Return the status of a run in the store; empty if the store does not have it."""
    return next((row.status for row in await store.runs() if row.id == run_id), "")


async def _known_status(store: Store, directory: RunDirectory) -> str:
    """Return the status of the run in the store.

    Raises `UsageError` if the store does not know the run. Its checkpoints alone are not enough: the order of tasks
    and the policy versions would start from the beginning.
    """
    known = {run.id: run.status for run in await store.runs()}
    if directory.name not in known:
        raise UsageError(
            f"{directory.path} has checkpoints, but its store {store.location} does not contain the run "
            f"'{directory.name}' (it contains: {', '.join(known) or 'none'}); put the right database back, or start a "
            "new run with model.path set to the checkpoint"
        )
    return known[directory.name]


def loading(model_dir: Path) -> str:
    """Return a notice with the model's path and size: loading takes seconds per GB, plus the import of torch."""
    weights = [path for form in ("*.safetensors", "*.bin") for path in model_dir.glob(form)]
    size = sum(path.stat().st_size for path in weights)
    written = f"{size / 1e9:.1f} GB" if size >= 1e8 else f"{size / 1e6:.1f} MB"  # noqa: PLR2004  (0.1 GB)
    return f"loading torch and the model {near(model_dir)} ({written})"


async def known_run(store: Store, components: BuiltComponents[Any], directory: RunDirectory) -> None:
    """Write the row of a resumed run if the store lacks it, and end the members that a killed process has left."""
    run_id = directory.name
    await check_identity(store, directory)
    if run_id not in {run.id for run in await store.runs()}:
        # A fork; or the first process was killed after it had made the folder and before it had written the run's row.
        await announce(store, components, run_id, identity=directory.identity, origin=directory.origin)
    await declare_gone(store, run_id)


async def rewind(store: Store, run_id: str, step: int, *, member_id: str = "") -> ResumePoint:
    """Void all steps after `step`, and publish the weights of `step` under a new policy version.

    The version is one that the run never used, so that no token of a voided step can be taken for one of the new steps.
    """
    await store.void_after(run_id, step, member_id=member_id)
    point = await store.resume_point(run_id, step)
    await store.update_run(run_id, status="running", member_id=member_id)
    await store.add_version(run_id, point.last_version + 1, step=step, member_id=member_id)
    return point


def model_directory(
    components: BuiltComponents[Any],
    directory: RunDirectory,
    conversations: Callable[[], Sequence[Mapping[str, Any]]],
    *,
    writer: Writer = UNNAMED,
) -> Path:
    """Return the folder of the policy before training: `model.path`, or the folder that the builder `model.use` fills.

    A builder trains its tokenizer on `conversations`. A resumed run keeps the folder that it has built.
    """
    config, where = components.config, components.where
    if config.model.path is not None:
        if problem := no_model_in(config.model.path, components.base_dir):
            raise ConfigError(f"{where('model.path')}: {problem}")
        return (components.base_dir / Path(config.model.path).expanduser()).resolve()
    if config.model.use is None:
        raise ConfigError(f"{where('model')}: the model is missing; set `path: FOLDER` or `use: tiny`")
    if not (directory.model / "config.json").is_file():
        with _appearing(directory.model, writer) as draft:
            builder = Component(config.model.use, config.model.options)
            components.build(
                "models",
                "model",
                builder,
                directory=draft,
                conversations=conversations(),
            )()
    return directory.model


@contextmanager
def _appearing(folder: Path, writer: Writer) -> Iterator[Path]:
    """Yield the path of a draft folder, and rename it to `folder` when it is complete.

    A process that is killed in between leaves no half-written model under the final name. Raises `RunError` if the
    folder cannot be written.
    """
    from safetensors import SafetensorError

    draft = writer.draft(folder)
    writer.remove_drafts(folder)
    try:
        yield draft
        make_private(draft)
        flush_to_disk(draft)
        writer.check()
        # An incomplete folder, left by an earlier version that wrote in place. `replace` needs an empty target.
        shutil.rmtree(folder, ignore_errors=True)
        draft.replace(folder)
    except (OSError, SafetensorError) as error:
        raise RunError(
            f"cannot build the policy in {folder}: {error}; free disk space there, or set output_dir to another folder"
        ) from error
    finally:
        shutil.rmtree(draft, ignore_errors=True)
