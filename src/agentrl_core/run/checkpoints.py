"""When a run writes checkpoints, and what it says of them when it is interrupted."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from pathlib import Path

    from agentrl_core.api.stores import Store
    from agentrl_core.config.schema import TrainerConfig
    from agentrl_core.config.sft import SftTrainerConfig
    from agentrl_core.run.directory import RunDirectory
    from agentrl_core.run.progress import Progress

logger = logging.getLogger(__name__)


class Saves(Protocol):
    """A learner or tuner whose state can be saved."""

    def save(self, directory: Path, step: int, version: int) -> None:
        """Write a checkpoint."""
        ...


class Checkpoints:
    """Writes what one run has trained: every `trainer.save_steps`, every `trainer.save_minutes`, and when told.

    `step` is the one that the run begins after; its checkpoint is there, unless it is 0.
    """

    def __init__(
        self,
        trained: Saves,
        store: Store,
        directory: RunDirectory,
        config: TrainerConfig | SftTrainerConfig,
        progress: Progress,
        *,
        step: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._trained, self._store, self._directory, self._config = trained, store, directory, config
        self._progress = progress
        self._clock, self._saved_at = clock, clock()
        self._saved = step

    def after_step(self, step: int, version: int) -> None:
        """Save where it is time to."""
        late = self._clock() - self._saved_at >= 60 * self._config.save_minutes
        if late or step % self._config.save_steps == 0:
            self.save(step, version)

    def save(self, step: int, version: int) -> None:
        """Save the state after `step`, unless it is already."""
        if step == self._saved:
            return
        self._progress.begin("saving")
        asyncio.run(self._store.flush())  # a checkpoint is never ahead of its store
        self._trained.save(self._directory.checkpoints / f"step-{step}", step=step, version=version)
        self._saved, self._saved_at = step, self._clock()

    def save_interrupted(
        self, step: int, version: int, notice: Callable[[str], None], *, broke_step: bool = False
    ) -> str:
        """Save the state after the last whole step of a run that is to end; return what is saved, for a person.

        `broke_step`: the next step has changed a part of the weights, so that there is no such state any more.
        """
        if not step:
            return "before the end of the first step: there is nothing to save yet"
        if broke_step:
            return f"in the midst of a step, which keeps its weights from being saved: {self._newest()}"
        try:
            try:
                if step != self._saved:
                    notice(f"interrupted: saving step {step}; once more, and it ends without")
            finally:  # whoever is told may be gone, with the terminal for one
                self.save(step, version)
        except KeyboardInterrupt:
            logger.warning("interrupted again while step %d was saved", step)
            return f"after step {step}, and again while it was saved: {self._newest()}"
        return f"after step {step}, which is saved: no step is lost"

    def _newest(self) -> str:
        since = f"the newest checkpoint is that of step {self._saved}" if self._saved else "there is no checkpoint"
        return f"{since}, later steps are taken again"
