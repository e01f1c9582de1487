"""Assemble the sampling parameters of a batch's rows for `sample`, and give the sampled tokens to the jobs.

Shared by both of the embedded engine's batches. Shapes: see `agentrl_core.engines.sampling`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch

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
        any_truncated=any(top_p < 1 or top_k > 0 for _, _, top_p, top_k in knobs),
        constrained=torch.tensor(constrained, dtype=torch.int64, device=device),
        allowed=_allowed([jobs[row] for row in constrained]).to(device) if constrained else NO_TOKENS,
        telling=torch.tensor(telling, dtype=torch.int64, device=device),
        num_likeliest=max((jobs[row].request.top_logprobs for row in telling), default=0),
    )


def hand_out(jobs: Sequence[Job], draw: Draw, sampled_2B: Tensor, likeliest_2RK: Tensor, version: int) -> None:
    """Append the sampled tokens to the jobs that have not ended."""
    ids, logprobs = sampled_2B.tolist()
    told = _told(draw, likeliest_2RK) if draw.num_likeliest > 0 else {}
    for row, job in enumerate(jobs):
        if job.reason is None:
            job.accept(int(ids[row]), logprobs[row], version, told.get(row, ()))


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
