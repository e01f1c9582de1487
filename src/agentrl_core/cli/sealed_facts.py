"""Facts that the seals of a run's audit chain name, joined for the commands that look back at the run."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import TYPE_CHECKING

import attrs

from agentrl_core.api.audit import Seal

if TYPE_CHECKING:
    from collections.abc import Iterable

    from agentrl_core.api.stores import SealRow


@attrs.define
class SealedFacts:
    """Digests of a run's facts by name; a later seal replaces what an earlier one says."""

    run: str = ""
    config: str = ""
    tasks: dict[tuple[str, str], str] = attrs.field(factory=dict)
    records: dict[str, Sequence[str]] = attrs.field(factory=dict)
    tool_calls: dict[str, Sequence[str]] = attrs.field(factory=dict)
    """Record id -> digests of its tool calls."""
    seal_of: dict[str, int] = attrs.field(factory=dict)
    """Record id -> number of the seal that names it last."""
    steps: dict[tuple[int, int], tuple[str, bool]] = attrs.field(factory=dict)
    """Number and version -> digest and `voided`."""
    versions: dict[int, str] = attrs.field(factory=dict)
    resumed_after: dict[int, int] = attrs.field(factory=dict)
    """Version -> lowest step from which a later process went on; versions of later steps are voided."""
    model: dict[str, str] = attrs.field(factory=dict)
    """File of the policy before training -> digest."""
    newest_checkpoint: str = ""
    """Name of the checkpoint that the last link with checkpoints names last."""
    status: str = ""
    """Status of the run according to its end; empty without an end."""
    checkpoints: dict[str, str] = attrs.field(factory=dict)
    weights: dict[str, str] = attrs.field(factory=dict)
    open_groups: set[str] = attrs.field(factory=set)
    ended: bool = False
    """Whether the last link is that of an orderly end."""

    @classmethod
    def of(cls, rows: Iterable[SealRow]) -> SealedFacts:
        """Join the seals of a chain without verifying it; unreadable ones are left out."""
        found = cls()
        for row in rows:
            with contextlib.suppress(ValueError):
                found.add(Seal.of(row))
        return found

    def add(self, seal: Seal) -> None:
        """Add the facts of the next seal."""
        self.run, self.config = self.run or seal.run, seal.config or self.config
        self.tasks |= {(name, task): digest for name, tasks in seal.tasks.items() for task, digest in tasks.items()}
        self.records |= seal.records
        self.tool_calls |= {name: seal.tool_calls.get(name, ()) for name in seal.records}
        self.seal_of |= dict.fromkeys(seal.records, seal.number)
        self.steps |= {(step, version): (digest, voided) for step, version, digest, voided in seal.steps}
        if (last := seal.voided_after) is not None:
            self.steps = {key: (digest, voided or key[0] > last) for key, (digest, voided) in self.steps.items()}
        self.versions |= {int(version): digest for version, digest in seal.versions.items()}
        if last is not None:
            self.resumed_after |= {
                version: min(last, self.resumed_after.get(version, last)) for version in self.versions
            }
        self.model |= seal.model
        self.checkpoints |= seal.checkpoints
        self.newest_checkpoint = max(seal.checkpoints, key=_step_of, default=self.newest_checkpoint)
        self.status = seal.status
        self.weights |= seal.weights
        self.ended, self.open_groups = seal.kind == "end", set(seal.open_groups)


def _step_of(checkpoint: str) -> int:
    return int(checkpoint.rpartition("-")[2])
