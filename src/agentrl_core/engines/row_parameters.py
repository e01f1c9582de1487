"""Assemble the sampling parameters of a batch's rows for `sample`, and give the sampled tokens to the jobs.

Shared by both of the embedded engine's batches. Shapes: see `agentrl_core.engines.sampling`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch

from agentrl_core.api.kept_tokens import ID_BYTES, ids_of
from agentrl_core.engines.constraints import allowed_tokens
from agentrl_core.engines.sampling import Draw

if TYPE_CHECKING:
    from torch import Tensor

    from agentrl_core.engines.jobs import Job, Likeliest

IDLE_KNOBS = (0.0, 1.0, 1.0, 0.0)
"""Parameters for rows whose job has ended while the rest of the batch continues; their tokens are discarded."""

NO_TOKENS = torch.empty(0, 0, dtype=torch.bool)


def lay_out(jobs: Sequence[Job], device: torch.device) -> Draw:
    """Return the `Draw` of one row per job, on `device`; a job that may sample no token at all ends with an error."""
    knobs = [job.draw_knobs() if job.reason is None else IDLE_KNOBS for job in jobs]
    constrained = [row for row, job in enumerate(jobs) if job.reason is None and (job.constraint or job.barred)]
    telling = [row for row, job in enumerate(jobs) if job.request.top_logprobs and job.reason is None]
    return Draw(
        knobs=torch.from_numpy(np.array(knobs, dtype=np.float64).reshape(-1, 4).T.copy()).to(device, non_blocking=True),
        any_greedy=any(temperature == 0 for _, temperature, _, _ in knobs),
        truncated=_rows((row for row, (_, _, top_p, top_k) in enumerate(knobs) if top_p < 1 or top_k > 0), device),
        keeping=_rows((row for row, job in enumerate(jobs) if job.reason is None and job.keeps), device),
        constrained=_rows(constrained, device),
        allowed=_allowed([jobs[row] for row in constrained]).to(device) if constrained else NO_TOKENS,
        telling=_rows(telling, device),
        num_likeliest=max((jobs[row].request.top_logprobs for row in telling), default=0),
    )


def hand_out(
    jobs: Sequence[Job], draw: Draw, sampled_3B: Tensor, kept_2E: Tensor, likeliest_2RK: Tensor, *, version: int
) -> None:
    """Append the sampled tokens to the jobs that have not ended."""
    ids, logprobs, before = sampled_3B.tolist()
    told = _told(draw, likeliest_2RK) if draw.num_likeliest > 0 else {}
    masks = _masks(draw, kept_2E)
    for row, job in enumerate(jobs):
        if job.reason is not None:
            continue
        likeliest, mask = told.get(row, ()), masks.get(row, b"")
        if likeliest and mask:
            likeliest = _renormalised(likeliest, mask, logprobs[row] - before[row])
        job.accept(int(ids[row]), logprobs[row], version, likeliest, mask)


def _rows(rows: Iterable[int], device: torch.device) -> Tensor:
    return torch.tensor(list(rows), dtype=torch.int64, device=device)


def _masks(draw: Draw, kept_2E: Tensor) -> dict[int, bytes]:
    """Return the sampling mask of each row that returns one, as `KeptTokens` has it."""
    rows = draw.keeping.tolist()
    if not rows:
        return {}
    places, ids = kept_2E.cpu().numpy()
    ends = np.bincount(places, minlength=len(rows)).cumsum() * ID_BYTES
    packed = ids.astype("<i4").tobytes()
    return {row: packed[start:end] for row, start, end in zip(rows, [0, *ends], ends, strict=False)}


def _renormalised(likeliest: Likeliest, mask: bytes, shift: float) -> Likeliest:
    """Return the entries of tokens that were left to sample from, in the distribution that the token was drawn from."""
    left = set(ids_of(mask))
    return tuple((token, logprob + shift) for token, logprob in likeliest if token in left)


def _allowed(jobs: Sequence[Job]) -> Tensor:
    allowed_CV = np.ones((len(jobs), jobs[0].vocab_size), dtype=np.bool_)
    held = [(row, job, job.constraint) for row, job in enumerate(jobs) if job.constraint is not None]
    if held:
        allowed_CV[[row for row, _, _ in held]], faults = allowed_tokens([constraint for _, _, constraint in held])
        for (_, job, _), fault in zip(held, faults, strict=True):
            if fault:
                job.fail(f"the output cannot continue under its grammar: {fault}")
    for job, allowed_V in zip(jobs, allowed_CV, strict=True):
        allowed_V[[token for token in job.barred if token < job.vocab_size]] = False
        if not allowed_V.any():
            job.fail(f"only a stop token may follow, and min_tokens is {job.request.sampling.min_tokens}")
            # The row is still computed with the others, and a softmax over no token would be NaN.
            allowed_V[:] = True
    return torch.from_numpy(allowed_CV)


def _told(draw: Draw, likeliest_2RK: Tensor) -> dict[int, Likeliest]:
    ids_RK, logprobs_RK = likeliest_2RK.tolist()
    return {
        row: tuple((int(token), logprob) for token, logprob in zip(ids, logprobs, strict=True))
        for row, ids, logprobs in zip(draw.telling.tolist(), ids_RK, logprobs_RK, strict=True)
    }
