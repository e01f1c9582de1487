"""Schedule of a run's checkpoints: after steps, after minutes, at the end, and on Ctrl-C."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from agentrl_core.stores.files import UNNAMED

if TYPE_CHECKING:
    from pathlib import Path

    from agentrl_core.api.stores import Store
    from agentrl_core.config.sft import SftTrainerConfig
    from agentrl_core.config.training_sections import TrainerConfig
    from agentrl_core.run.directory import RunDirectory
    from agentrl_core.run.progress import Progress
    from agentrl_core.stores.files import Writer

logger = logging.getLogger(__name__)


class Saves(Protocol):
    """Interface of a learner or tuner whose state can be saved."""

    def save(self, directory: Path, step: int, version: int, *, writer: Writer) -> None:
        """Write a checkpoint."""
        ...


class Checkpoints:
    """Writer of one run's checkpoints: every `trainer.save_steps`, every `trainer.save_minutes`, and on request.

    `step` is the step after which the run begins. Unless it is 0, its checkpoint exists already.
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
        writer: Writer = UNNAMED,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._trained, self._store, self._directory, self._config = trained, store, directory, config
        self._progress, self._writer = progress, writer
        self._clock, self._saved_at = clock, clock()
        self._saved = step

    def after_step(self, step: int, version: int, config: TrainerConfig | None = None) -> None:
        """Save if the step count or the clock says so; `config` has limits that were changed during the run."""
        given = config or self._config
        late = self._clock() - self._saved_at >= 60 * given.save_minutes
        if late or step % given.save_steps == 0:
            self.save(step, version)

    def save(self, step: int, version: int) -> None:
        """Save the state after `step`, unless that is saved already."""
        if step == self._saved:
            return
        self._progress.begin("saving")
        # The store comes first. A checkpoint of steps that the store lacks could not be resumed: the order of tasks
        # and the policy versions would be lost.
        asyncio.run(self._store.flush())
        directory = self._directory.checkpoints / f"step-{step}"
        self._trained.save(directory, step=step, version=version, writer=self._writer)
        self._saved, self._saved_at = step, self._clock()

    def save_interrupted(
        self, step: int, version: int, notice: Callable[[str], None], *, broke_step: bool = False
    ) -> str:
        """Save the state after the last whole step; return text for the user that says what is saved.

        `broke_step` says that a second signal ended the next step after it had changed part of the weights. The state
        after the last whole step is then gone, so nothing is saved.
        """
        if not step:
            return "during the first step: there is nothing to save yet"
        if broke_step:
            return f"in the middle of a step, so the weights are half updated and were not saved: {self._newest()}"
        try:
            try:
                if step != self._saved:
                    notice(f"interrupted: saving step {step}; press Ctrl-C again to end without saving")
            finally:
                # Save although the notice may fail, for example because the terminal was closed (SIGHUP).
                self.save(step, version)
        except KeyboardInterrupt:
            logger.warning("interrupted again while step %d was saved", step)
            return f"after step {step}, and again while that step was being saved: {self._newest()}"
        return f"after step {step}, which is saved: no finished step is lost"

    def _newest(self) -> str:
        since = f"the newest checkpoint is that of step {self._saved}" if self._saved else "there is no checkpoint"
        return f"{since}; a resumed run repeats the steps after it"
