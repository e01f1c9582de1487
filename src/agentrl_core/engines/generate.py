"""Padded batches through transformers' `generate`: serves any architecture that transformers can sample from.

The slow alternative to `ContinuousBatch`: a batch runs until all of its jobs have ended, and new jobs wait for the next
one. Each token is chosen here, by the same `sample` as in the engine's own loop, and forced on `generate`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from agentrl_core.engines.row_parameters import hand_out, lay_out
from agentrl_core.engines.sampling import likeliest, sample

if TYPE_CHECKING:
    from agentrl_core.engines.jobs import Host, Job


class GenerateBatch:
    """Runs jobs in padded batches of at most `slots` rows (`implementation: generate`). Belongs to one thread."""

    implementation = "generate"

    def __init__(self, model: nn.Module, *, slots: int, context_length: int, device: torch.device) -> None:
        self._model: Any = model.to(device)
        self._device = device
        # The model directory's generation settings (top_k, penalties, …) would change the sampled distribution.
        self._model.generation_config = type(self._model.generation_config)()
        self._slots = slots
        self._context_length = context_length
        self._waiting: list[Job] = []
        self._running: list[Job] = []
        self._stale = False

    @property
    def busy(self) -> bool:
        """Whether a step has work to do."""
        return any(job.reason is None for job in (*self._running, *self._waiting))

    def add(self, job: Job) -> None:
        """Queue a job."""
        self._waiting.append(job)

    def refresh(self, model: nn.Module) -> None:
        """Copy the weights of `model`; a running batch restarts with the tokens that it has sampled so far."""
        state = dict(model.named_parameters()) | dict(model.named_buffers())
        for name, target in (*self._model.named_parameters(), *self._model.named_buffers()):
            target.copy_(state[name])
        # Ends the running batch at its next token: the keys and values inside of `generate` are those of the old
        # weights.
        self._stale = True

    def stop(self) -> None:
        """End the running batch at its next token."""
        self._stale = True

    def release(self) -> None:
        """Do nothing: `generate` has freed its memory when the batch ended (see `stop`)."""

    def reclaim(self) -> None:
        """Do nothing: the next batch allocates its own memory."""

    def step(self, host: Host) -> None:
        """Run a batch until all of its jobs have ended, the weights have changed, or the context is full.

        In the last two cases the unfinished jobs form the next batch. The context fills up early because rows of ended
        jobs keep growing until the batch ends, and no row may exceed the positions that the model knows.
        """
        self._waiting = [job for job in self._waiting if job.reason is None]
        if not self._running:
            self._running, self._waiting = self._waiting[: self._slots], self._waiting[self._slots :]
        self._stale = False
        jobs = self._running
        longest = max(len(job.ids) for job in jobs)
        padding = [longest - len(job.ids) for job in jobs]
        self._model.generate(
            # Padding on the left, so that all rows end at the same position.
            torch.tensor([[0] * pad + job.ids for pad, job in zip(padding, jobs, strict=True)], device=self._device),
            attention_mask=torch.tensor([[0] * pad + [1] * (longest - pad) for pad in padding], device=self._device),
            logits_processor=[lambda _, logits_BV: self._choose(host, logits_BV)],
            stopping_criteria=[lambda *_: self._ended(jobs)],
            max_new_tokens=min(max(job.limit - len(job.ids) for job in jobs), self._context_length - longest),
            do_sample=False,
            pad_token_id=0,
        )
        self._running = [job for job in jobs if job.reason is None]

    def _ended(self, jobs: list[Job]) -> Tensor:
        return torch.tensor([self._stale or job.reason is not None for job in jobs], device=self._device)

    def _choose(self, host: Host, logits_BV: Tensor) -> Tensor:
        """Sample one token per running job and return scores that leave `generate` no other choice."""
        jobs = self._running
        running = [job for job in jobs if job.reason is None]
        draw = lay_out(jobs, self._device)
        # The engine's own loop does not round the logits either.
        logits_BV = logits_BV.float()
        sampled_3B, kept_2E = sample(logits_BV, draw)
        told = likeliest(logits_BV, draw) if draw.num_likeliest > 0 else sampled_3B[:0]
        hand_out(jobs, draw, sampled_3B, kept_2E, told, version=host.version)
        host.publish(running)
        host.attend()
        forced_BV = torch.full_like(logits_BV, -torch.inf)
        return forced_BV.scatter_(1, sampled_3B[0].long().unsqueeze(1), 0.0)
