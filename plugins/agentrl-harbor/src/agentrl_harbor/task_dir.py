"""`TaskDir`: one task directory, with its instruction, config, and the folders for sandbox and verifier."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

import attrs

from agentrl_harbor.task_config import EnvironmentConfig, TaskConfig, read_config

# Marks by which benchmarks find themselves in training data; they are not part of the instruction.
_CANARY: Final = re.compile(r"\s*(?:<!--.*canary.*-->|#.*canary.*)\s*", re.IGNORECASE)


@attrs.frozen(kw_only=True)
class Definition:
    """An environment: its config and the folder with its Dockerfile."""

    config: EnvironmentConfig
    folder: Path
    has_tests: bool = False
    """The image brings the tests itself, in `/tests`."""


@attrs.frozen(kw_only=True)
class TaskDir:
    """A task directory that can be run."""

    path: Path
    instruction: str
    config: TaskConfig

    @classmethod
    def read(cls, path: Path) -> TaskDir:
        """Read and check a task directory; raise ValueError with the file and the reason."""
        path = path.resolve()
        try:
            config = read_config((path / "task.toml").read_text(encoding="utf-8"))
            instruction = _without_canary((path / "instruction.md").read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError) as error:
            raise ValueError(f"{path}: expected instruction.md and task.toml ({error})") from error
        except ValueError as error:
            raise ValueError(f"{path}/task.toml: {error}") from error
        task = cls(path=path, instruction=instruction, config=config)
        task._check()
        return task

    @property
    def environment(self) -> Definition:
        """Environment of the agent."""
        return Definition(config=self.config.environment, folder=self.path / "environment")

    @property
    def verifier_environment(self) -> Definition | None:
        """Environment of a verifier of its own; None if it runs in the agent's."""
        config = self.config.verifier.environment
        if config is None:
            return None
        if config.docker_image or (self.tests / "Dockerfile").is_file():
            return Definition(config=config, folder=self.tests, has_tests=True)
        image = attrs.evolve(config, docker_image=self.config.environment.docker_image)
        return Definition(config=image, folder=self.path / "environment")

    @property
    def tests(self) -> Path:
        """Folder with `test.sh`."""
        return self.path / "tests"

    def _check(self) -> None:
        if not self.instruction.strip():
            raise ValueError(f"{self.path}/instruction.md: is empty")
        definition = self.verifier_environment
        if (definition is None or not definition.has_tests) and not (self.tests / "test.sh").is_file():
            raise ValueError(f"{self.path}: expected tests/test.sh")
        for folder in {self.environment.folder, *((definition.folder,) if definition else ())}:
            if any((folder / name).exists() for name in ("docker-compose.yaml", "docker-compose.yml")):
                raise ValueError(f"{folder}/docker-compose.yaml: tasks of several containers are not supported")
        if not self.config.environment.docker_image and not (self.environment.folder / "Dockerfile").is_file():
            raise ValueError(f"{self.path}: expected environment/Dockerfile, or environment.docker_image in task.toml")
        for file in (self.path / name for name in ("environment", "tests")):
            for item in file.rglob("*") if file.is_dir() else ():
                if item.is_symlink() and not item.resolve().is_relative_to(self.path):
                    raise ValueError(f"{item}: the link leads out of the task directory")


def _without_canary(text: str) -> str:
    lines = text.split("\n")
    while lines and (_CANARY.fullmatch(lines[0]) or (len(lines) > 1 and not lines[0].strip())):
        lines.pop(0)
    return "\n".join(lines)
