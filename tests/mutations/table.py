"""Table of all mutations, by topic."""

from tests.mutations import (
    advantages,
    attention,
    corrections,
    logprobs,
    losses,
    masks,
    packing,
    signals,
    supervised,
    training,
)

TABLE = (
    *losses.TABLE,
    *corrections.TABLE,
    *logprobs.TABLE,
    *masks.TABLE,
    *packing.TABLE,
    *attention.TABLE,
    *advantages.TABLE,
    *signals.TABLE,
    *training.TABLE,
    *supervised.TABLE,
)
