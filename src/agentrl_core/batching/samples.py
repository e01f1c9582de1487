"""Training samples: each branch of an episode as the token sequence that the engine saw, with its loss spans.

A linear dialogue is one sample with several spans. Where an episode forks, each leaf has one, and a sampled
token is in the loss of the first sample that holds it, so every trained token counts exactly once. That is how the
tokens are laid out; what counts as one training sequence is told apart from it, by `rollout.agent.export_style`: an
LLM call, or a whole sample. Attention being causal, a token has the same logprob in both.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, TypeAlias

import attrs

from agentrl_core.batching.credit import children_of, is_trained
from agentrl_core.config.invocation import command_line
from agentrl_core.errors import TrainingError
from agentrl_core.weights.witness import NOTHING, Fidelity, verify

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from agentrl_core.types import Episode, Group, Interaction


ExportStyle: TypeAlias = Literal["individual", "concat"]
"""`individual`: a training sequence is an LLM call. `concat`: the calls that first appear on the way to a leaf."""


@attrs.frozen(kw_only=True)
class Sample:
    """One sequence of token ids, cut after its last loss token. The lists below `ids` run over its L loss tokens."""

    ids: Sequence[int]
    positions: Sequence[int]
    """Places of the loss tokens in `ids`, rising, never 0. [L]"""
    logprobs: Sequence[float]
    """Behaviour logprobs. [L]"""
    temperatures: Sequence[float]
    """Sampling temperature under which each logprob was taken, above 0. [L]"""
    advantages: Sequence[float]
    versions: Sequence[int]
    """Policy version that sampled each. [L]"""
    interactions: Sequence[int]
    """Index into `Samples.interactions`. [L]"""
    sequences: Sequence[int]
    """Number of the training sequence that each belongs to, in the whole step. [L]"""
    record: int
    """Index into `Samples.records`."""
    group: int
    """Index into `Samples.groups`."""
    call_tokens: int = attrs.field(default=attrs.Factory(lambda self: len(self.ids) - 1, takes_self=True))
    """Tokens that its calls would take one by one, each with its whole prompt and without its last token, from which
    nothing is predicted."""


@attrs.frozen(kw_only=True)
class Samples:
    """The samples of one step, and the names behind their indices."""

    samples: tuple[Sample, ...]
    interactions: tuple[str, ...]
    records: tuple[str, ...]
    groups: tuple[str, ...]
    num_sequences: int
    """Training sequences, as `rollout.agent.export_style` makes them."""
    fidelity: Fidelity
    """How many of the loss tokens are what the sampler produced."""


def training_samples(
    groups: Sequence[Group], advantages: Mapping[str, float], *, style: ExportStyle = "individual"
) -> Samples:
    """Lay out every interaction that has an advantage.

    Raises `TrainingError` where ids, logprobs and versions of an interaction do not match in number, and where it
    was sampled at temperature 0, or is not what the engine saw and sampled.
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
    """One sample per leaf that adds loss tokens, each call a training sequence of its own.

    `numbers`: interaction id -> its index, of those to train.
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
    """The sequence of `lineage`, with the outputs of `new` in the loss."""
    ids: list[int] = []
    positions: list[int] = []
    logprobs: list[float] = []
    temperatures: list[float] = []
    values: list[float] = []
    versions: list[int] = []
    owners: list[int] = []
    call_tokens = 0
    for item in lineage:
        ids.extend(item.prompt_ids)
        if item.id in new:
            count = len(item.output_ids)
            positions.extend(range(len(ids), len(ids) + count))
            logprobs.extend(item.logprobs)
            temperatures.extend([item.sampling.temperature] * count)
            values.extend([advantages[item.id]] * count)
            versions.extend(item.output_versions)
            owners.extend([numbers[item.id]] * count)
        ids.extend(item.output_ids)
        call_tokens += len(ids) - 1 if item.id in new else 0
    return Sample(
        ids=ids[: positions[-1] + 1],
        positions=positions,
        logprobs=logprobs,
        temperatures=temperatures,
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
            f"the first deviation is at {fidelity.deviation}. Its ids were changed after it was sampled: nothing of it "
            f"may be trained (`{command_line('trace', 'verify')}` checks the whole run)"
        )
    return fidelity


def _check_trainable(item: Interaction) -> None:
    tokens, versions = len(item.output_ids), sum(count for _, count in item.versions)
    if not tokens == len(item.logprobs) == versions:
        raise TrainingError(
            f"record {item.record_id}, interaction {item.id}: {tokens} output tokens, {len(item.logprobs)} logprobs "
            f"and {versions} versions; a trained output needs one of each per token"
        )
    if item.parent is None and not item.prompt_ids:
        raise TrainingError(
            f"record {item.record_id}, interaction {item.id}: the output has no prompt before it, so its first "
            "token has no distribution to be trained on"
        )
    if not item.sampling.temperature > 0:
        raise TrainingError(
            f"record {item.record_id}, interaction {item.id}: sampled at temperature {item.sampling.temperature:g}, "
            "at which there is no distribution to train; train what was sampled at a positive temperature "
            "(sampling.temperature, gateway.temperature)"
        )
