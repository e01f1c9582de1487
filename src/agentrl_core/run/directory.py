"""Layout of the run directory, its creation and look-up, its lock, its config snapshot and its log files."""

from __future__ import annotations

import difflib
import itertools
import json
import logging
import os
import random
import re
import uuid
from collections.abc import Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from io import TextIOWrapper
from pathlib import Path
from typing import Any

import attrs

from agentrl_core.config.invocation import command_line, is_in_runs, near
from agentrl_core.errors import RunError, UsageError
from agentrl_core.gateway.sessions import without_secrets
from agentrl_core.stores.files import make_private, make_private_folder, private_opener, restore_replaced
from agentrl_core.stores.folder_lock import FolderInUseError, folder_lock

_ADJECTIVES = ("brisk", "calm", "clever", "eager", "gentle", "keen", "lively", "patient", "quick", "steady")
_ANIMALS = ("badger", "crane", "falcon", "heron", "lynx", "marten", "otter", "raven", "swift", "wren")


@attrs.frozen
class RunDirectory:
    """Run directory: the folder with everything that one run writes.

    Only its owner may read it. A run deletes nothing in it except checkpoints beyond `trainer.keep_last` and published
    weights that no server reads any more; `agentrl runs gc` deletes more once the run has ended.
    """

    path: Path

    @property
    def name(self) -> str:
        """The run's name."""
        return self.path.name

    @property
    def database(self) -> Path:
        """Path of the SQLite store."""
        return self.path / "agentrl.db"

    @property
    def model(self) -> Path:
        """Folder of the policy before training, if the run builds it (`model.use`)."""
        return self.path / "model"

    def first_model(self, config: Mapping[str, Any], base_dir: Path) -> Path | None:
        """Return the folder of the policy before training, built or named by a config; None if it is not there."""
        named = (config.get("model") or {}).get("path")
        folder = base_dir / Path(named).expanduser() if named else self.model
        return folder if folder.is_dir() else None

    @property
    def warm_started(self) -> Path:
        """Folder of the policy after the warm start, if the loss uses it as reference.

        It is kept apart from the checkpoints, because old checkpoints are deleted.
        """
        return self.path / "reference"

    @property
    def checkpoints(self) -> Path:
        """Folder with one folder `step-N` per checkpoint."""
        return self.path / "checkpoints"

    def weights(self, place: str | None, base_dir: Path, identity: str) -> Path:
        """Return the folder of the policy versions that `agentrl train` publishes; `place` is `weights.place`."""
        if place is None:
            return self.path / "weights"
        # Runs of several folders may have the same name.
        return (base_dir / Path(place).expanduser() / f"{self.name}-{identity[:8]}").absolute()

    @property
    def published(self) -> Path:
        """Folder of the policy versions that the run has published, as its config snapshot says."""
        if not self.snapshot.is_file():
            return self.weights(None, self.path, "")
        config, base_dir = self.read_snapshot()
        return self.weights((config.get("weights") or {}).get("place"), base_dir, self.identity)

    @property
    def picture(self) -> Path:
        """Path of the reward curve."""
        return self.path / "reward.png"

    @property
    def admin_key(self) -> Path:
        """Path of the admin key that opens sessions, if the run created one."""
        return self.path / "admin_key"

    @property
    def snapshot(self) -> Path:
        """Path of the config snapshot: the effective config of the run, with overrides of resumptions."""
        return self.path / "config.json"

    @property
    def reference(self) -> str:
        """Name of the run for command lines: its name if it is in the default folder `runs`, else its path."""
        return self.name if is_in_runs(self.path) else near(self.path)

    @property
    def logs(self) -> Path:
        """Folder of the log files."""
        return self.path / "logs"

    def log(self, role: str, rank: int = 0) -> Path:
        """Return the path of the log file of one process."""
        return self.logs / f"{role}_{rank}.log"

    @classmethod
    def create(cls, output_dir: Path, name: str) -> RunDirectory:
        """Create the folder of a new run; an empty `name` generates one.

        Raises `UsageError` if the name exists already or the folder cannot be created.
        """
        name = name or _free_name(output_dir)
        path = output_dir / name
        if path.exists():
            raise UsageError(
                f"run '{name}' exists already ({path}): choose another --name, "
                f"or resume it: {command_line('runs', 'resume', cls(path.resolve()).reference)}"
            )
        try:
            for folder in (path, path / "logs", path / "checkpoints"):
                make_private_folder(folder)
        except OSError as error:
            raise UsageError(
                f"cannot create the run directory {path}: {error}; set output_dir to another folder"
            ) from error
        return cls(path.resolve())

    def add_missing(self) -> None:
        """Create what a member of the run needs on a machine that the run did not begin on: a folder for its log.

        Raises `UsageError` if the folder cannot be created.
        """
        try:
            for folder in (self.path, self.path / "logs"):
                with suppress(FileExistsError):
                    make_private_folder(folder)
        except OSError as error:
            raise UsageError(f"cannot create {self.path}: {error}; set output_dir to another folder") from error

    @classmethod
    def open(cls, path: Path) -> RunDirectory:
        """Open the folder of an earlier run; raise `UsageError` if there is none at `path`."""
        directory = cls(path.resolve())
        if directory.database.is_file() and not directory.snapshot.is_file():
            raise UsageError(
                f"{directory.snapshot} is missing, the config snapshot of the run '{directory.name}'; "
                "put it back, or start a new run from the config file"
            )
        if not directory.snapshot.is_file():
            names = [item.parent.name for item in path.parent.glob("*/config.json")]
            near = difflib.get_close_matches(path.name, names, n=1)
            hint = f" (did you mean {near[0]}?)" if near else f" (runs there: {', '.join(sorted(names)) or 'none'})"
            raise UsageError(f"no run at {path}{hint}")
        return directory

    def all_checkpoints(self) -> list[tuple[int, Path]]:
        """Return step and folder of each checkpoint, the newest first."""
        found = [
            (int(match[1]), path)
            for path in self.checkpoints.glob("step-*")
            if (match := re.fullmatch(r"step-(\d+)", path.name))
        ]
        return sorted(found, reverse=True)

    def put_aside(self, checkpoint: Path) -> Path:
        """Rename a checkpoint so that the run does not resume from it; return its new path."""
        names = (f"aside-{number}-{checkpoint.name}" for number in itertools.count(1))
        return checkpoint.rename(next(path for name in names if not (path := checkpoint.with_name(name)).exists()))

    def write_snapshot(
        self, config: Mapping[str, Any], base_dir: Path, *, command: str = "run", origin: str = ""
    ) -> None:
        """Write the config snapshot: the effective config, its base folder for relative paths, and the command.

        The first snapshot gives the run its identity and its `origin`, which later ones keep. Raises `RunError` if it
        cannot be written.
        """
        known = self.snapshot.exists()
        identity, origin = (self.identity, self.origin) if known else (uuid.uuid4().hex, origin)
        kept = {"command": command, "base_dir": str(base_dir), "identity": identity, "origin": origin, "config": config}
        text = json.dumps(kept, indent=2, ensure_ascii=False)
        draft = self.path / f".{self.snapshot.name}.draft"
        try:
            with open(draft, "w", encoding="utf-8", opener=private_opener) as file:
                file.write(text)
            draft.replace(self.snapshot)  # atomic: a process that is killed here leaves the old or the new snapshot
        except OSError as error:
            raise RunError(f"cannot write {self.snapshot}: {error}") from error

    def read_snapshot(self) -> tuple[dict[str, Any], Path]:
        """Return the config of the snapshot, and the folder from which its relative paths start."""
        kept = self._kept()
        return kept["config"], Path(kept["base_dir"])

    @property
    def command(self) -> str:
        """Command that started the run: `run` or `sft`."""
        return str(self._kept().get("command", "run"))

    @property
    def identity(self) -> str:
        """Random text that the run's row in its store has too; empty for a run older than identities."""
        return str(self._kept().get("identity", ""))

    @property
    def origin(self) -> str:
        """Checkpoint of another run that this one began from, as `agentrl runs fork` wrote it; empty for others."""
        return str(self._kept().get("origin", ""))

    def check_name(self, name: str) -> None:
        """Raise `UsageError` if `name` is not the folder's name."""
        if name != self.name:
            raise UsageError(
                f"the folder {self.path} belongs to the run '{name}', and a run keeps its name; rename the folder "
                "back, or leave `name` out"
            )

    def _kept(self) -> dict[str, Any]:
        try:
            kept: dict[str, Any] = json.loads(self.snapshot.read_text(encoding="utf-8"))
            _ = kept["config"], Path(kept["base_dir"])
            return kept  # noqa: TRY300  # every fault of the file gets the one message below
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise UsageError(
                f"{self.snapshot}: not the config snapshot of a run ({error}); "
                "put it back, or start a new run from the config file"
            ) from error

    @contextmanager
    def private(self) -> Iterator[None]:
        """Remove other users' access to the folder's files, at once and again at the end.

        The second pass covers the files that trackers and plugins have added in between.
        """
        make_private(self.path)
        try:
            yield
        finally:
            make_private(self.path)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the run's advisory lock, so that no other process trains this run.

        The operating system releases the lock when the process ends, even after kill -9. A checkpoint that a killed
        process was replacing gets its name back. Raises `UsageError` if another process holds the lock.
        """
        with ExitStack() as held:
            try:
                held.enter_context(folder_lock(self.path))
                restore_replaced(self.checkpoints)
            except FolderInUseError as holder:
                message = f"run '{self.name}' is being trained by process {holder}; end that process first"
                raise UsageError(message) from None
            except OSError as error:
                where = error.filename or self.path
                message = f"cannot write {where}: {error.strerror}; free disk space there, or make the folder writable"
                raise RunError(message) from error
            yield

    @contextmanager
    def logging_to(self, role: str, rank: int = 0, *, modules: Collection[str] = ()) -> Iterator[Path]:
        """Write the log records of agentrl and of `modules`, such as a registry's, into the log file of this process.

        Lasts as long as the context, which yields the file's path.
        """
        try:
            self.log(role, rank).parent.mkdir(exist_ok=True)
            handler = _LogFile(self.log(role, rank), encoding="utf-8", errors="backslashreplace")
        except OSError as error:
            raise RunError(f"cannot write {self.log(role, rank)}: {error.strerror}; free disk space there") from error
        handler.setFormatter(_WithoutSecrets("%(asctime)s %(levelname)s %(name)s: %(message)s"))
        loggers = [logging.getLogger(name) for name in {"agentrl_core", *modules}]
        previous = [(logger, logger.level, logger.propagate) for logger in loggers]
        for logger in loggers:
            logger.addHandler(handler)
            logger.setLevel(logging.INFO)
            logger.propagate = False  # only trackers write to the terminal
        try:
            yield self.log(role, rank)
        finally:
            for logger, level, propagate in previous:
                logger.removeHandler(handler)
                logger.setLevel(level)
                logger.propagate = propagate
            handler.close()


class _WithoutSecrets(logging.Formatter):
    """Formatter that removes sessions' keys and addresses from the log."""

    def format(self, record: logging.LogRecord) -> str:
        """Return one log line, without secrets."""
        return without_secrets(super().format(record))


class _LogFile(logging.FileHandler):
    """Log file that drops records on a full disk instead of printing tracebacks to the terminal.

    The write that stops the run then reports the full disk itself.
    """

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802  # logging's name
        """Drop the record."""

    def _open(self) -> TextIOWrapper:
        file = super()._open()
        os.fchmod(file.fileno(), 0o600)
        return file

    def close(self) -> None:
        """Close the file, and drop what could not be written."""
        with suppress(OSError):
            super().close()


def _free_name(output_dir: Path) -> str:
    """Return a random name, two words and a number, that no run in `output_dir` has yet."""
    chooser = random.SystemRandom()
    while True:
        name = f"{chooser.choice(_ADJECTIVES)}-{chooser.choice(_ANIMALS)}-{chooser.randrange(100, 1000)}"
        if not (output_dir / name).exists():
            return name
