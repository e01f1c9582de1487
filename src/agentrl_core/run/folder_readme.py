"""The README.md of a run's folder: what each file in it is, and the commands that show, resume and check the run."""

from __future__ import annotations

from fnmatch import fnmatch
from typing import TYPE_CHECKING

from agentrl_core.config.invocation import PROGRAM
from agentrl_core.errors import RunError
from agentrl_core.stores.files import private_opener

if TYPE_CHECKING:
    from agentrl_core.run.directory import RunDirectory

README = "README.md"

_ENTRIES = {
    "config.json": "the effective config with the overrides of resumptions, its base folder, the run's identity",
    "agentrl.db": "the store (SQLite): tasks, records, LLM calls with token ids, groups, steps, policy versions",
    "agentrl.db-*": "part of the store (write-ahead log and its index); it belongs to `agentrl.db`, so copy both or "
    "neither",
    "checkpoints": "`step-N`: model folder, optimizer and trainer state, with each file's digest in `manifest.json`; "
    "`aside-…`: checkpoints of steps that the store lacks",
    "model": "the policy before training, if the run built it or began as a fork",
    "reference": "the policy after the warm start, which the loss refers to",
    "weights": "`version-N`: policy versions that the trainer hands to servers in other processes",
    "logs": "the log of each process, without secrets: `run_0.log` of the trainer or of `agentrl run`, "
    "`ROLE-HOST_PROCESS.log` of samplers and servers, `server-N.log` of model servers that the run launched",
    "metrics.jsonl": "the metrics of each step, one JSON object per line",
    "reward.png": "the reward by step",
    "admin_key": "the key that opens sessions of online agents: a secret",
}
"""File or pattern -> explanation, in the order of the table."""


def write_readme(directory: RunDirectory) -> None:
    """Write the folder's README.md for the files that it has now; raise `RunError` if it cannot be written."""
    names = [README, *sorted(path.name for path in directory.path.iterdir() if not path.name.startswith("."))]
    known = [(name, told) for pattern, told in _ENTRIES.items() for name in names if fnmatch(name, pattern)]
    others = set(names) - {name for name, _ in known} - {README}
    rows = [*known, *((name, "written by a tracker or a plugin") for name in sorted(others))]
    text = "\n".join(
        [
            f"# Run {directory.name}",
            "",
            (
                f"A run of `{PROGRAM} run`, or of `{PROGRAM} train` with servers and samplers."
                if directory.command == "run"
                else f"A run of `{PROGRAM} {directory.command}`."
            )
            + (f" It began from the checkpoint of {directory.origin}." if directory.origin else ""),
            "This file is written when the run begins and when it ends; changes of yours are lost.",
            "",
            "| file | content |",
            "|---|---|",
            *(f"| `{name}` | {told} |" for name, told in rows),
            "",
            "```bash",
            *(f"{PROGRAM} {command:<40} # {what}" for command, what in _commands(directory)),
            "```",
            "",
        ]
    )
    try:
        with open(directory.path / README, "w", encoding="utf-8", opener=private_opener) as file:
            file.write(text)
    except OSError as error:
        raise RunError(f"cannot write {error.filename}: {error.strerror}; free disk space there") from error


def _commands(directory: RunDirectory) -> list[tuple[str, str]]:
    run = directory.reference
    sampled = [
        (f"trace list {run}", "episodes; `trace show RECORD` prints one"),
        (f"trace verify {run}", "each trained token against the engine's own digest"),
        (f"runs fork {run} --step N", "a new run from a checkpoint"),
    ]
    return [
        (f"runs show {run}", "status, processes, groups, steps"),
        (f"runs logs {run} --follow", "the logs"),
        (f"runs stop {run}", "end it after its step, with a checkpoint"),
        (f"runs resume {run}", "go on from the newest checkpoint"),
        *(sampled if directory.command == "run" else ()),
        (f"runs gc {run} --dry-run", "what may be removed of it"),
    ]
