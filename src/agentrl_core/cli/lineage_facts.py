"""Values that `agentrl trace lineage` finds and prints: records, LLM calls, steps, versions, checkpoints."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import attrs


@attrs.frozen(kw_only=True)
class Checkpoint:
    """A checkpoint folder by its manifest."""

    folder: str
    step: int | None
    version: int
    digest: str


@attrs.frozen(kw_only=True)
class Origin:
    """Origin of the weights of a policy version."""

    version: int
    step: int | None
    """Optimizer step behind the weights; 0 before the first one, None if the store does not say."""
    voided: bool
    """Whether a resumed run went back behind that step."""
    told: str
    """The origin in words."""
    checkpoint: Checkpoint | None
    """Checkpoint of exactly these weights."""


@attrs.frozen(kw_only=True)
class StepUse:
    """One optimizer step that consumed a record."""

    step: int
    voided: bool
    version: int
    """Version that the step published."""
    trained_tokens: int
    """Sampled tokens of the record's trainable calls."""
    checkpoint: Checkpoint | None
    """First checkpoint whose weights contain the step."""
    digest: str = ""
    """Digest of the step in the run's seals; empty if none names it."""


@attrs.frozen(kw_only=True)
class CallFacts:
    """One LLM call of a record."""

    interaction: str
    seq: int
    parent: str | None
    new_prompt_tokens: int
    sampled_tokens: int
    trained_tokens: int
    versions: Mapping[int, int]
    """Policy version -> number of tokens that it sampled."""
    upstream: str
    digest: str = ""
    """Digest that was taken before the call was stored; empty for calls of earlier versions."""


@attrs.frozen(kw_only=True)
class RecordFacts:
    """A record, from its task to the weights that contain it."""

    run: str
    record: str
    task: str
    task_set: str
    group: str
    sample_index: int
    outcome: str
    reward: float | None
    calls: Sequence[CallFacts]
    sampled_by: Sequence[Origin]
    trained_by: Sequence[StepUse]
    missing: Sequence[str]
    digest: str = ""
    task_digest: str = ""
    """Digests of record and task in the run's seals; empty if none names them."""
    seal: int | None = None
    """Number of the seal that names the record."""


@attrs.frozen(kw_only=True)
class Consumed:
    """A record in the batch of a step, or with tokens of a version."""

    record: str
    digest: str
    """Digest of the record in the run's seals; empty if none names it."""
    task: str
    reward: float | None
    tokens: int
    """Trained tokens in a step; for a version, the tokens that it sampled."""
    versions: Mapping[int, int]


@attrs.frozen(kw_only=True)
class StepFacts:
    """An optimizer step, from the policies that sampled its batch to the weights that it made."""

    run: str
    step: int
    voided: bool
    version: int
    groups: Sequence[str]
    records: Sequence[Consumed]
    sampled_by: Sequence[Origin]
    checkpoint: Checkpoint | None
    missing: Sequence[str]
    digest: str = ""
    """Digest of the step in the run's seals; empty if none names it."""


@attrs.frozen(kw_only=True)
class VersionFacts:
    """A policy version, from the step that made it to the steps that trained what it sampled."""

    run: str
    origin: Origin
    records: Sequence[Consumed]
    trained_by: Sequence[int]
    """Live steps that consumed these records."""
    missing: Sequence[str]


@attrs.frozen(kw_only=True)
class CheckpointFacts:
    """A checkpoint folder, with the steps behind its weights."""

    run: str
    checkpoint: Checkpoint
    verified: bool
    """True if every file is as the manifest says."""
    steps: Sequence[tuple[int, int, int]]
    """Step, the version that it published, and the number of its records, for each live step behind the weights."""
    missing: Sequence[str]
    sealed: str = ""
    """Digest of the manifest in the run's seals; empty if none names it."""
