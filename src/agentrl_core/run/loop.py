"""Main loop of `agentrl run`: take groups, update the weights, publish them, evaluate, save, report."""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

import attrs

from agentrl_core import config as configs
from agentrl_core.api.stores import StepRow
from agentrl_core.api.trackers import EvalReport, RunInfo, RunSummary, StepReport
from agentrl_core.config.invocation import command_line
from agentrl_core.errors import MemberError, NothingLearnedError, RunError, StoreError
from agentrl_core.plugins.catalog import default_scorer
from agentrl_core.run.audit import AuditTrail
from agentrl_core.run.checkpoints import Checkpoints
from agentrl_core.run.directions import Directions
from agentrl_core.run.group_ranking import GroupRanking
from agentrl_core.run.loss import is_pretrained_model
from agentrl_core.run.no_signal import Giver, changed_weights, has_no_signal
from agentrl_core.run.sampling import BatchCollector
from agentrl_core.run.step_warnings import StepWarnings, answers_found
from agentrl_core.run.versions import TokenAges

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from agentrl_core.api.weights import Publication
    from agentrl_core.run.components import RunComponents
    from agentrl_core.run.directory import RunDirectory
    from agentrl_core.run.events import RunEvents
    from agentrl_core.run.interruption import Interruption
    from agentrl_core.run.sampling import SampledCounts, SamplingSide
    from agentrl_core.run.start import Start
    from agentrl_core.types import Record

logger = logging.getLogger(__name__)

_STEPS_AT_TARGET = 3
"""Number of last steps over which the mean reward is compared with `trainer.stop_at_reward`."""


def audit_trail(components: RunComponents, directory: RunDirectory, start: Start) -> AuditTrail:
    """Seal the start of a run, or of its resumption, and return the trail that seals what follows."""
    return AuditTrail(
        start.store,
        directory,
        # As in the run's folder: a run that was not given a name has got one.
        config=configs.dump_without_passwords(attrs.evolve(components.config, name=directory.name)),
        used=components.used,
        base_dir=components.base_dir,
        step=start.step,
        version=start.version,
        member_id=start.writer.name,
    )


class TrainingLoop:
    """Training of one run, on the calling thread; `sampling` provides its groups, and is closed at the end."""

    def __init__(
        self,
        components: RunComponents,
        directory: RunDirectory,
        start: Start,
        sampling: SamplingSide,
        events: RunEvents,
        interruption: Interruption,
        *,
        started_at: float,
        directions: Directions | None = None,
    ) -> None:
        self._writer = start.writer
        self._interruption, self._directions = interruption, directions or Directions()
        self._components, self._config = components, components.config
        self._directory, self._events, self._started_at = directory, events, started_at
        self._learner, self._store = start.learner, start.store
        self._step, self._version = start.step, start.version
        self._evals: list[EvalReport] = []
        earlier = [row.metrics for row in self._earlier_steps()]
        self._without_signal = _last_in_a_row(earlier, has_no_signal)
        self._not_finite = _last_in_a_row(earlier, _left_out)
        self._has_trained = any(map(changed_weights, earlier))
        self._ages = TokenAges(asyncio.run(self._store.versions(directory.name)))
        self._recent_rewards = [metrics.get("reward/mean", 0.0) for metrics in earlier][-_STEPS_AT_TARGET:]
        self._sampled_at: float | None = None
        self._sampled: list[Record] = []
        self._noticed: set[str] = set()
        self._progress = events.progress
        self._sampling = sampling
        self._progress.count_calls(lambda: sampling.llm_calls)
        (order,) = components.of("group_orders")
        self._batches = BatchCollector(
            sampling,
            self._learner,
            self._config.rollout,
            ages=self._ages,
            notice=events.notice,
            ranking=GroupRanking.of(order, components.tasks),
        )
        self._checkpoints = Checkpoints(
            self._learner,
            self._store,
            directory,
            self._config.trainer,
            self._progress,
            step=start.step,
            writer=self._writer,
        )
        self._audit = audit_trail(components, directory, start)
        # The learner calls this just before it changes the weights: from then on a Ctrl-C waits for the step's end.
        self._learner.before_change(interruption.hold)
        self._watch = StepWarnings(
            self._config,
            events.notice,
            max_tokens=sampling.max_tokens,
            pretrained=is_pretrained_model(components.loaded, components.registry),
            giver=_giver(components),
            tool_error=self._tool_error,
            earlier=earlier,
        )

    def run(self) -> RunSummary:
        """Train to the end. The summary also goes to the trackers if the run fails or is interrupted."""
        info = RunInfo(
            name=self._directory.name,
            directory=str(self._directory.path),
            config=configs.dump_without_passwords(self._config),
            components=dict(self._components.used),
            config_file=str(self._components.loaded.file or ""),
        )
        status, message = "failed", ""
        try:
            self._events.run_started(info)
            with self._told_first_if_lost():
                self._train()
            status = "finished"
        except KeyboardInterrupt:
            status = "interrupted"
            message = self._checkpoints.save_interrupted(
                self._step, self._version, self._events.notice, broke_step=self._interruption.broke_step
            )
            raise KeyboardInterrupt(message) from None  # `carry_out` adds the command that resumes
        except BaseException as error:
            message = str(error)
            raise
        finally:
            summary = self._finish(status, message)
        return summary

    @contextmanager
    def _told_first_if_lost(self) -> Iterator[None]:
        """Raise `LostError` instead of an error that comes of a successor's work, and would mislead."""
        try:
            yield
        except RunError as error:
            if isinstance(error, MemberError) or not isinstance(error, StoreError):  # a store that is away cannot tell
                self._writer.check()
            raise

    def _train(self) -> None:
        self._tell_notices()
        self._learner.release()
        self._evaluate(self._config.eval.tasks)
        if self._step >= self._config.trainer.steps:
            # Without steps, this is all. Else the run was killed during its last evaluation and resumed: the evaluation
            # above is the one it lacked.
            return
        self._sampling.begin()
        rollout = self._config.rollout
        self._events.notice(
            f"step {self._step + 1} of {self._config.trainer.steps} begins: {rollout.tasks_per_step} tasks x "
            f"{rollout.group_size} episodes"
        )
        while self._step < self._config.trainer.steps:
            self._directions.wait_while_paused(self._interruption.check)
            with self._interruption.whole_step():
                report, counts = self._take_step()
                # Report the step before the evaluation that may follow it, so that the console prints them in order.
                self._events.step_finished(report)
            self._watch.step(report.step, report.metrics, counts.answers, counts.tools)
            self._tell_notices()
            self._check_signal(report)
            self._check_finite(report)
            if self._reached_target(report):
                break
            evaluation = self._directions.limited("eval", self._config.eval)
            every = evaluation.every
            if every and self._step % every == 0 and self._step < self._config.trainer.steps:
                self._evaluate(evaluation.tasks_during)
            self._sampling.open_capacity(self._version, self._step)
        # Evaluate at the end, unless the last evaluation was after this very step and on as many tasks.
        if (
            not self._evals
            or self._evals[-1].step != self._step
            or self._config.eval.tasks_during < self._config.eval.tasks
        ):
            self._evaluate(self._config.eval.tasks)
        self._checkpoints.save(self._step, self._version)

    def _tell_notices(self) -> None:
        """Pass on what sampling has to say, each line once."""
        for notice in self._sampling.notices:
            if notice not in self._noticed:
                self._noticed.add(notice)
                self._events.notice(notice)

    def _take_step(self) -> tuple[StepReport, SampledCounts]:
        """Take an optimizer step, from waiting for its groups to its row in the store; return report and counts."""
        begin = time.perf_counter()
        rollout = self._config.rollout
        self._progress.begin_step(self._step + 1, self._config.trainer.steps, ahead=rollout.max_head_offpolicyness > 0)
        self._progress.begin("sampling", total=rollout.tasks_per_step * rollout.group_size)
        signal, collected = self._batches.collect(self._step)
        self._progress.taken(group.id for group in signal.sampled)
        self._progress.begin("training")
        sampled = time.perf_counter()
        sampling_s = sampled - self._sampling_since(begin)
        self._sampled_at = sampled
        # Groups that are sampled meanwhile need the engine's memory.
        takes_turns = self._config.trainer.offload != "none" and rollout.max_head_offpolicyness == 0
        lent = takes_turns and self._sampling.lend_memory(self._learner.device)
        metrics = self._learner.step(signal, step=self._step + 1, version=self._version)
        trained = time.perf_counter()
        # From here on weights, version, store row and step number must change together; a Ctrl-C waits until then.
        self._interruption.hold()
        self._step += 1
        publication = self._publish()
        counts = self._sampling.drain_counts()
        metrics |= collected | {
            **_published(publication),
            **answers_found(counts.answers),
            **_unseen_tools(counts),
            **_failed_tools(counts),
            "rollout/groups_unusable": float(counts.groups.get("unusable", 0)),
            "rollout/groups_requeued": float(counts.groups.get("requeued", 0)),
            "time/rollout_s": sampled - begin,
            "time/train_s": trained - sampled,
            "time/sample_idle_s": counts.idle_s,
            "time/step_s": time.perf_counter() - begin,
            "rollout/tokens_per_s": metrics.get("rollout/tokens", 0.0) / max(sampling_s, 1e-9),
        }
        row = StepRow(
            run_id=self._directory.name,
            step=self._step,
            version=self._version,
            groups=[group.id for group in signal.sampled],
            records=[episode.record.id for group in signal.groups for episode in group.episodes],
            metrics=metrics,
        )
        asyncio.run(self._store.add_step(row, member_id=self._writer.name))
        self._has_trained = self._has_trained or changed_weights(metrics)
        self._sampled = [episode.record for group in signal.sampled for episode in group.episodes]
        self._checkpoints.after_step(
            self._step, self._version, self._directions.limited("trainer", self._config.trainer)
        )
        # Not earlier: the engine has taken the weights, and a checkpoint has read them.
        self._learner.release()
        if lent:
            self._sampling.take_memory_back()
        self._audit.step(row)
        report = StepReport(
            step=self._step,
            version=self._version,
            metrics=metrics,
            outcomes=counts.outcomes,
            left_out=self._learner.left_out,
        )
        return report, counts

    def _sampling_since(self, begin: float) -> float:
        """Return the time at which the sampling of a step's groups began.

        Off-policy, sampling goes on while the last step is trained, so the time since then counts, not only the wait.
        """
        if self._config.rollout.max_head_offpolicyness == 0 or self._sampled_at is None:
            return begin
        return self._sampled_at

    def _publish(self) -> Publication | None:
        """Record the next policy version in the store, and load its weights into the engine; return how they came."""
        self._version += 1
        # Before anything can sample from it: a crash in between must not leave tokens of an unknown version.
        name = self._directory.name
        asyncio.run(self._store.add_version(name, self._version, step=self._step, member_id=self._writer.name))
        self._ages.publish(self._version, self._step)
        publication = self._sampling.load_weights(self._version, self._learner.weights())
        self._events.weights_published(self._version)
        return publication

    def _evaluate(self, tasks: int) -> None:
        if not self._components.eval_sets:
            return
        episodes = sum(len(members[:tasks]) for members in self._components.eval_sets.values())
        self._progress.begin("evaluating", total=episodes)
        results = self._sampling.evaluate(self._components.eval_sets, tasks)
        report = EvalReport(
            step=self._step,
            rewards={name: found.mean for name, found in results.items()},
            errors={name: found.error for name, found in results.items()},
            records={name: found.scored for name, found in results.items()},
            failed={name: found.failed for name, found in results.items()},
        )
        self._evals.append(report)
        self._events.evaluated(report)
        for name, found in results.items():
            if found.failed and not found.scored:
                raise RunError(
                    f"none of the {found.failed} evaluation episodes on '{name}' ended with a reward; "
                    f"see what happened in: {command_line('trace', 'list', self._directory.reference)}"
                )

    def _check_signal(self, report: StepReport) -> None:
        """Stop the run after `trainer.max_steps_without_signal` steps in a row that had nothing to learn from."""
        if not has_no_signal(report.metrics):
            self._without_signal = 0
            return
        self._without_signal += 1
        if self._without_signal >= self._config.trainer.max_steps_without_signal:
            kind = RunError if self._has_trained else NothingLearnedError
            prefix = "" if self._has_trained else "nothing was learned: "
            raise kind(
                f"{prefix}{self._without_signal} steps in a row had nothing to learn from "
                f"(trainer.max_steps_without_signal). In the last one, {self._watch.no_signal}"
            )

    def _check_finite(self, report: StepReport) -> None:
        """Report what `trainer.non_finite: skip` left out; stop the run if that happens in too many steps in a row."""
        if not _left_out(report.metrics):
            self._not_finite = 0
            return
        self._not_finite += 1
        records = "; ".join(f"{record}: {what}" for record, what in sorted(report.left_out.items()))
        skipped = report.metrics.get("batch/updates_skipped", 0.0)
        self._events.notice(
            f"step {report.step}: left out of the loss because of NaN or infinite numbers: {records}"
            + (f"; {skipped:.0f} optimizer updates of this step were skipped" if skipped else "")
        )
        if self._not_finite >= self._config.trainer.max_steps_not_finite:
            raise RunError(
                f"{self._not_finite} steps in a row had NaN or infinite numbers, the last one in: {records}. Look at "
                f"these records ({command_line('trace', 'show')}), and lower trainer.lr if loss/grad_norm grows; "
                "trainer.max_steps_not_finite sets after how many such steps a run stops"
            )

    def _tool_error(self, tool: str) -> str:
        """Return the message of a failed call of a tool in the last step; empty if its records have none."""
        for record in self._sampled:
            if record.marks and (episode := asyncio.run(self._store.episode(record.id))) is not None:
                errors = (call.error for call in episode.tool_calls if call.name == tool and call.outcome.is_failure)
                if error := next(errors, ""):
                    return error
        return ""

    def _nothing_learned(self) -> str:
        """Say that no step changed the weights, and why the last one did not; empty if one did, or none was taken."""
        if self._has_trained or not self._step:
            return ""
        why = f". In the last one, {self._watch.no_signal}" if self._watch.no_signal else ""
        return f"nothing was learned: no step changed the weights, which are those of the start{why}"

    def _earlier_steps(self) -> list[StepRow]:
        """Return the steps before the run was resumed, without voided ones."""
        if not self._step:
            return []
        return [row for row in asyncio.run(self._store.steps(self._directory.name)) if not row.voided]

    def _reached_target(self, report: StepReport) -> bool:
        target = self._config.trainer.stop_at_reward
        self._recent_rewards = [*self._recent_rewards, report.metrics.get("reward/mean", 0.0)][-_STEPS_AT_TARGET:]
        if target is None or len(self._recent_rewards) < _STEPS_AT_TARGET:
            return False
        return sum(self._recent_rewards) / _STEPS_AT_TARGET >= target

    def _finish(self, status: str, message: str) -> RunSummary:
        """Close the sampling side, report the summary, and return it. The store stays as it is."""
        sampled = self._sampling.close()
        head = self._audit.end(status)
        summary = RunSummary(
            name=self._directory.name,
            directory=str(self._directory.path),
            status=status,
            steps=self._step,
            version=self._version,
            evals=tuple(self._evals),
            outcomes=sampled.outcomes,
            groups={**sampled.groups, **self._batches.totals},
            llm_calls=sampled.llm_calls,
            cpu_seconds={**sampled.cpu_seconds, "learner": self._learner.cpu_seconds},
            wall_s=time.time() - self._started_at,
            trained_tokens=self._learner.fidelity.trained,
            exact_tokens=self._learner.fidelity.exact,
            error=message,
            nothing_learned=self._nothing_learned(),
            head=head,
        )
        self._events.run_finished(summary)
        return summary


def _published(publication: Publication | None) -> dict[str, float]:
    """Return the metrics of a publication; none if the engine measures nothing."""
    if publication is None:
        return {}
    found = {
        "weights/bytes": publication.bytes,
        "weights/seconds": publication.seconds,
        "weights/stall_s": publication.stall_s,
        "weights/canary_gap": publication.canary_gap,
        "weights/canary_change": publication.canary_change,
    }
    return {name: float(value) for name, value in found.items() if value is not None}


def _unseen_tools(counts: SampledCounts) -> dict[str, float]:
    return {} if counts.unseen_tools is None else {"rollout/calls_with_unseen_tools": float(counts.unseen_tools)}


def _failed_tools(counts: SampledCounts) -> dict[str, float]:
    """Return the share of tool calls that failed; nothing if no tool was called."""
    called, failed = (
        sum(count for name, count in counts.tools.items() if name.startswith(f"{kind} "))
        for kind in ("called", "failed")
    )
    return {"rollout/tool_calls_failed": failed / called} if called else {}


def _giver(components: RunComponents) -> Giver:
    config = components.config
    default = config.data.default_scorer or default_scorer()
    scorers = dict.fromkeys(task.scorer or default for task in components.tasks)
    return Giver(scorers=list(scorers), workflow=config.workflow.use if config.workflow else "the agent")


def _left_out(metrics: Mapping[str, float]) -> bool:
    """Return whether `trainer.non_finite: skip` left records of a step out."""
    return metrics.get("batch/records_not_finite", 0.0) > 0


def _last_in_a_row(steps: Sequence[Mapping[str, float]], holds: Callable[[Mapping[str, float]], bool]) -> int:
    """Return for how many of the last steps `holds` is true without a break, so that a resumed run counts on."""
    return len(list(itertools.takewhile(holds, reversed(steps))))
