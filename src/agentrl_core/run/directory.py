"""The folder of one run: config snapshot, store, logs, checkpoints, picture."""

from __future__ import annotations

import difflib
import itertools
import json
import logging
import os
import random
import re
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from io import TextIOWrapper
from pathlib import Path
from typing import Any

import attrs

from agentrl_core.config.invocation import command_line
from agentrl_core.errors import RunError, UsageError
from agentrl_core.gateway.sessions import without_secrets
from agentrl_core.stores.files import make_private, make_private_folder, private_opener
from agentrl_core.stores.folder_lock import FolderInUseError, folder_lock

_ADJECTIVES = ("brisk", "calm", "clever", "eager", "gentle", "keen", "lively", "patient", "quick", "steady")
_ANIMALS = ("badger", "crane", "falcon", "heron", "lynx", "marten", "otter", "raven", "swift", "wren")


@attrs.frozen
class RunDirectory:
    """The folder of one run, for its owner alone. Only checkpoints beyond `keep_last` are ever erased."""

    path: Path

    @property
    def name(self) -> str:
        """The run's name."""
        return self.path.name

    @property
    def database(self) -> Path:
        """The store's file."""
        return self.path / "agentrl.db"

    @property
    def model(self) -> Path:
        """The policy before training, where the run built it."""
        return self.path / "model"

    @property
    def warm_started(self) -> Path:
        """The policy after the warm start, where the loss refers to it; checkpoints go, this stays."""
        return self.path / "reference"

    @property
    def checkpoints(self) -> Path:
        """Folder of `step-N` folders."""
        return self.path / "checkpoints"

    @property
    def picture(self) -> Path:
        """The reward curve."""
        return self.path / "reward.png"

    @property
    def admin_key(self) -> Path:
        """The key that opens sessions, where the run made it."""
        return self.path / "admin_key"

    @property
    def snapshot(self) -> Path:
        """The config that the run started with."""
        return self.path / "config.json"

    @property
    def reference(self) -> str:
        """What commands call the run: its name where they look for it by themselves, else its path."""
        return self.name if self.path.parent == Path("runs").resolve() else str(self.path)

    def log(self, role: str, rank: int = 0) -> Path:
        """Log file of one process."""
        return self.path / "logs" / f"{role}_{rank}.log"

    @classmethod
    def create(cls, output_dir: Path, name: str) -> RunDirectory:
        """Make the folder of a new run; an existing name is refused, an empty one is generated."""
        name = name or _free_name(output_dir)
        path = output_dir / name
        if path.exists():
            raise UsageError(
                f"run '{name}' exists already ({path}): choose another --name, "
                f"or go on with it: {command_line('runs', 'resume', cls(path.resolve()).reference)}"
            )
        try:
            for folder in (path, path / "logs", path / "checkpoints"):
                make_private_folder(folder)
        except OSError as error:
            raise UsageError(f"cannot create the run's folder {path}: {error}; set output_dir elsewhere") from error
        return cls(path.resolve())

    @classmethod
    def open(cls, path: Path) -> RunDirectory:
        """Find the folder of an earlier run."""
        directory = cls(path.resolve())
        if directory.database.is_file() and not directory.snapshot.is_file():
            raise UsageError(
                f"{directory.snapshot} is missing, the config that the run '{directory.name}' leaves there; "
                "put it back, or start a new run from the config file"
            )
        if not directory.snapshot.is_file():
            names = [item.parent.name for item in path.parent.glob("*/config.json")]
            near = difflib.get_close_matches(path.name, names, n=1)
            hint = f" (did you mean {near[0]}?)" if near else f" (runs there: {', '.join(sorted(names)) or 'none'})"
            raise UsageError(f"no run at {path}{hint}")
        return directory

    def all_checkpoints(self) -> list[tuple[int, Path]]:
        """Step and folder of each checkpoint, the newest first."""
        found = [
            (int(match[1]), path)
            for path in self.checkpoints.glob("step-*")
            if (match := re.fullmatch(r"step-(\d+)", path.name))
        ]
        return sorted(found, reverse=True)

    def put_aside(self, checkpoint: Path) -> Path:
        """Take a checkpoint out of those that the run goes on from; return what it is called now."""
        names = (f"aside-{number}-{checkpoint.name}" for number in itertools.count(1))
        return checkpoint.rename(next(path for name in names if not (path := checkpoint.with_name(name)).exists()))

    def write_snapshot(self, config: Mapping[str, Any], base_dir: Path, *, command: str = "run") -> None:
        """Keep the effective config, the folder that its relative paths start from, and whose config it is."""
        kept = {"command": command, "base_dir": str(base_dir), "config": config}
        text = json.dumps(kept, indent=2, ensure_ascii=False)
        draft = self.path / f".{self.snapshot.name}.draft"
        try:
            with open(draft, "w", encoding="utf-8", opener=private_opener) as file:
                file.write(text)
            draft.replace(self.snapshot)  # a process that is killed here leaves one or the other, never half of it
        except OSError as error:
            raise RunError(f"cannot write {self.snapshot}: {error}") from error

    def read_snapshot(self) -> tuple[dict[str, Any], Path]:
        """The config as `write_snapshot` kept it."""
        kept = self._kept()
        return kept["config"], Path(kept["base_dir"])

    @property
    def command(self) -> str:
        """Of which command the run is, `run` or `sft`."""
        return str(self._kept().get("command", "run"))

    def check_name(self, name: str) -> None:
        """Refuse another name than the folder's."""
        if name != self.name:
            raise UsageError(
                f"the folder {self.path} is that of run '{name}': a run keeps its name; rename the folder back, or "
                "leave `name` out"
            )

    def _kept(self) -> dict[str, Any]:
        try:
            kept: dict[str, Any] = json.loads(self.snapshot.read_text(encoding="utf-8"))
            _ = kept["config"], Path(kept["base_dir"])
            return kept  # noqa: TRY300  # whatever is wrong in it has one message
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise UsageError(
                f"{self.snapshot}: not the config that a run leaves there ({error}); "
                "put it back, or start a new run from the config file"
            ) from error

    @contextmanager
    def private(self) -> Iterator[None]:
        """Take everyone else's access to what is there, and to what trackers and others have added at the end."""
        make_private(self.path)
        try:
            yield
        finally:
            make_private(self.path)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep other processes from training this run; the lock ends with the process, however it ends."""
        with ExitStack() as held:
            try:
                held.enter_context(folder_lock(self.path))
            except FolderInUseError as holder:
                message = f"run '{self.name}' is being trained by process {holder}; end that first"
                raise UsageError(message) from None
            except OSError as error:
                where = error.filename or self.path
                message = f"cannot write {where}: {error.strerror}; make room there, or the folder writable"
                raise RunError(message) from error
            yield

    @contextmanager
    def logging_to(self, role: str, rank: int = 0) -> Iterator[None]:
        """Send agentrl's log records to this process's log file while the context lasts."""
        try:
            self.log(role, rank).parent.mkdir(exist_ok=True)
            handler = _LogFile(self.log(role, rank), encoding="utf-8", errors="backslashreplace")
        except OSError as error:
            raise RunError(f"cannot write {self.log(role, rank)}: {error.strerror}; make room there") from error
        handler.setFormatter(_WithoutSecrets("%(asctime)s %(levelname)s %(name)s: %(message)s"))
        logger = logging.getLogger("agentrl_core")
        previous = logger.level, logger.propagate
        logger.addHandler(handler)
        logger.setLevel(logging.INFO)
        logger.propagate = False  # the terminal belongs to the trackers
        try:
            yield
        finally:
            logger.removeHandler(handler)
            logger.setLevel(previous[0])
            logger.propagate = previous[1]
            handler.close()


class _WithoutSecrets(logging.Formatter):
    """Takes sessions' keys and addresses out of what is logged."""

    def format(self, record: logging.LogRecord) -> str:
        """Write one record."""
        return without_secrets(super().format(record))


class _LogFile(logging.FileHandler):
    """A log that a full disk silences: what stops the run then says so itself."""

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802  # logging's name
        """Drop the record."""

    def _open(self) -> TextIOWrapper:
        file = super()._open()
        os.fchmod(file.fileno(), 0o600)
        return file

    def close(self) -> None:
        """Close it; what could not be written is dropped, too."""
        with suppress(OSError):
            super().close()


def _free_name(output_dir: Path) -> str:
    """Two words that no run in `output_dir` has yet."""
    chooser = random.SystemRandom()
    while True:
        name = f"{chooser.choice(_ADJECTIVES)}-{chooser.choice(_ANIMALS)}-{chooser.randrange(100, 1000)}"
        if not (output_dir / name).exists():
            return name
