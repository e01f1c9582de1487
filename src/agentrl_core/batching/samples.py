"""Build training samples from episodes: each branch as the token sequence that the engine saw, with its loss tokens.

A linear dialogue is one sample with several loss spans. If an episode forks, every leaf has its own sample. A sampled
token is in the loss of the first sample that contains it, so every trained token counts exactly once.

This layout is independent of what counts as one training sequence: an LLM call or a whole sample, by
`rollout.agent.export_style`. Attention is causal, so a token's log-probability is the same in both.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, TypeAlias

import attrs

from agentrl_core.api.kept_tokens import joined
from agentrl_core.batching.credit import children_of, is_trained
from agentrl_core.config.invocation import command_line
from agentrl_core.errors import TrainingError
from agentrl_core.weights.witness import NOTHING, Fidelity, verify

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from agentrl_core.types import Episode, Group, Interaction, KeptTokens


ExportStyle: TypeAlias = Literal["individual", "concat"]
"""Unit that counts as one training sequence. `individual`: an LLM call. `concat`: the trained calls of one sample."""


@attrs.frozen(kw_only=True)
class Sample:
    """Token sequence that ends with its last loss token. The lists below `ids` have one entry per loss token [L]."""

    ids: Sequence[int]
    positions: Sequence[int]
    """Indices of the loss tokens in `ids`, rising, never 0. [L]"""
    logprobs: Sequence[float]
    """Behaviour log-probabilities. [L]"""
    temperatures: Sequence[float]
    """Sampling temperature of each log-probability, above 0. [L]"""
    kept: KeptTokens = ()
    """Sampling mask of each token, over which its log-probability is renormalised; empty if none has one. [L]"""
    advantages: Sequence[float]
    """Advantage of each token's interaction. [L]"""
    versions: Sequence[int]
    """Policy version that sampled each token. [L]"""
    interactions: Sequence[int]
    """Index into `Samples.interactions`. [L]"""
    sequences: Sequence[int]
    """Number, within the step, of the training sequence that each token belongs to. [L]"""
    record: int
    """Index into `Samples.records`."""
    group: int
    """Index into `Samples.groups`."""
    call_tokens: int = attrs.field(default=attrs.Factory(lambda self: len(self.ids) - 1, takes_self=True))
    """Number of tokens to compute if each trained call ran separately, with its whole prompt and without its last
    token, which predicts nothing."""


@attrs.frozen(kw_only=True)
class Samples:
    """Samples of one step, with the ids that their indices refer to."""

    samples: tuple[Sample, ...]
    interactions: tuple[str, ...]
    """Interaction ids."""
    records: tuple[str, ...]
    """Record ids."""
    groups: tuple[str, ...]
    """Group ids."""
    num_sequences: int
    """Number of training sequences, by `rollout.agent.export_style`."""
    fidelity: Fidelity
    """Count of trained tokens, and of those that are exactly what the engine sampled."""


def training_samples(
    groups: Sequence[Group], advantages: Mapping[str, float], *, style: ExportStyle = "individual"
) -> Samples:
    """Build the samples of a step: every trained interaction with an advantage is in the loss.

    `advantages`: interaction id -> advantage. Raises `TrainingError` if an interaction's ids, logprobs, masks and
    versions differ in number, if it was sampled at temperature 0 or with top-p or top-k and no masks, or if its ids are
    not what the engine saw and sampled.
    """
    fidelity = NOTHING
    samples: list[Sample] = []
    interactions: list[str] = []
    records: list[str] = []
    for group_index, group in enumerate(groups):
        for episode in group.episodes:
            fidelity += _checked_fidelity(episode)
            numbers = {}
            for item in episode.interactions:
                if is_trained(item) and item.id in advantages:
                    _check_trainable(item)
                    numbers[item.id] = len(interactions)
                    interactions.append(item.id)
            laid_out = _episode_samples(episode, numbers, advantages, record=len(records), group=group_index)
            if style == "concat":
                laid_out = [_as_one(sample, len(samples) + place) for place, sample in enumerate(laid_out)]
            samples.extend(laid_out)
            records.append(episode.record.id)
    return Samples(
        samples=tuple(samples),
        interactions=tuple(interactions),
        records=tuple(records),
        groups=tuple(group.id for group in groups),
        num_sequences=len(samples) if style == "concat" else len(interactions),
        fidelity=fidelity,
    )


def _episode_samples(
    episode: Episode, numbers: Mapping[str, int], advantages: Mapping[str, float], *, record: int, group: int
) -> list[Sample]:
    """Return one sample per leaf that adds loss tokens, with each call as its own training sequence.

    `numbers`: interaction id -> index, of the interactions to train.
    """
    children = children_of(episode)
    by_id = {item.id: item for item in episode.interactions}
    samples = []
    done: set[str] = set()
    for leaf in (item for item in episode.interactions if not children[item.id]):
        lineage = [leaf]
        while (parent := lineage[-1].parent) is not None:
            lineage.append(by_id[parent])
        lineage.reverse()
        # Interactions of a shared trunk are in the loss of the first leaf only; for later leaves they are context.
        new = [item for item in lineage if item.id in numbers and item.id not in done]
        if new:
            done.update(item.id for item in new)
            samples.append(_sample(lineage, {item.id for item in new}, numbers, advantages, record=record, group=group))
    return samples


def _sample(
    lineage: Sequence[Interaction],
    new: set[str],
    numbers: Mapping[str, int],
    advantages: Mapping[str, float],
    *,
    record: int,
    group: int,
) -> Sample:
    """Return the sample of `lineage` (root to leaf), with the outputs of `new` in the loss."""
    ids: list[int] = []
    positions: list[int] = []
    logprobs: list[float] = []
    temperatures: list[float] = []
    masks: list[KeptTokens] = []
    values: list[float] = []
    versions: list[int] = []
    owners: list[int] = []
    counts: list[int] = []
    call_tokens = 0
    for item in lineage:
        ids.extend(item.prompt_ids)
        if item.id in new:
            count = len(item.output_ids)
            positions.extend(range(len(ids), len(ids) + count))
            logprobs.extend(item.logprobs)
            temperatures.extend([item.sampling.temperature] * count)
            masks.append(item.kept)
            counts.append(count)
            values.extend([advantages[item.id]] * count)
            versions.extend(item.output_versions)
            owners.extend([numbers[item.id]] * count)
        ids.extend(item.output_ids)
        # `ids` now is the call's whole prompt with its output.
        call_tokens += len(ids) - 1 if item.id in new else 0
    return Sample(
        ids=ids[: positions[-1] + 1],
        positions=positions,
        logprobs=logprobs,
        temperatures=temperatures,
        kept=joined(masks, counts),
        advantages=values,
        versions=versions,
        interactions=owners,
        sequences=owners,
        record=record,
        group=group,
        call_tokens=call_tokens,
    )


def _as_one(sample: Sample, sequence: int) -> Sample:
    """Return the sample as a single training sequence."""
    return attrs.evolve(sample, sequences=[sequence] * len(sample.positions))


def _checked_fidelity(episode: Episode) -> Fidelity:
    fidelity = verify(episode)
    if fidelity.deviation is not None:
        raise TrainingError(
            f"record {episode.record.id}: {fidelity.exact} of {fidelity.trained} tokens are what the engine sampled; "
            f"the first deviation is at {fidelity.deviation}. The record's token ids were changed after sampling, so "
            f"it must not be trained; check the whole run with `{command_line('trace', 'verify')}`"
        )
    return fidelity


def _check_trainable(item: Interaction) -> None:
    tokens, versions = len(item.output_ids), sum(count for _, count in item.versions)
    if not tokens == len(item.logprobs) == versions:
        raise TrainingError(
            f"record {item.record_id}, interaction {item.id}: {tokens} output tokens, {len(item.logprobs)} logprobs "
            f"and {versions} versions; expected one logprob and one version per output token"
        )
    if item.kept and len(item.kept) != tokens:
        raise TrainingError(
            f"record {item.record_id}, interaction {item.id}: {tokens} output tokens and {len(item.kept)} sampling "
            "masks; expected one mask per output token, or none"
        )
    if item.sampling.truncates and not all(item.kept or (b"",) * tokens):
        raise TrainingError(
            f"record {item.record_id}, interaction {item.id}: sampled with top_p {item.sampling.top_p:g} and top_k "
            f"{item.sampling.top_k}, but the engine returned no sampling masks, so its distribution is not known; set "
            "sampling.top_p to 1 and sampling.top_k to 0, or use an engine that returns masks"
        )
    if item.parent is None and not item.prompt_ids:
        raise TrainingError(
            f"record {item.record_id}, interaction {item.id}: the output has no prompt before it, so no model output "
            "predicts its first token; expected at least one prompt token"
        )
    if not item.sampling.temperature > 0:
        raise TrainingError(
            f"record {item.record_id}, interaction {item.id}: sampled at temperature {item.sampling.temperature:g}, "
            "at which there is no distribution to train; sample at a positive temperature (sampling.temperature, "
            "gateway.temperature)"
        )
