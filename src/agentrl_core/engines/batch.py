"""Continuous batching with a prefix cache: which jobs occupy which rows, and what each step computes.

Serves the embedded engine for the architectures that `Decoder` computes. Jobs wait until a row is free. Then they copy
the cached part of their prompt from the prefix store, prefill the rest in spans of at most `prefill_tokens` per step,
and decode one token per step together with all other rows.
"""

from __future__ import annotations

import logging
import warnings
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from agentrl_core.engines.cache import KeyValueCache
from agentrl_core.engines.decoder import LAYER_TENSORS, Decoder, StepPlan
from agentrl_core.engines.fused import fused_decoder, refresh
from agentrl_core.engines.prefixes import Key, PrefixIndex
from agentrl_core.engines.row_parameters import hand_out, lay_out

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor, nn

    from agentrl_core.engines.jobs import Host, Job

log = logging.getLogger(__name__)

BLOCK_TOKENS = 8
"""Tokens per block of the prefix store. Smaller blocks mean less to recompute after the last shared block, and more
lookups per prompt. Of a whole prompt nothing is recomputed but its last token, whatever the size."""


class ContinuousBatch:
    """The embedded engine's own decoding loop (`implementation: loop`). Belongs to one thread."""

    implementation = "loop"

    def __init__(
        self,
        model: nn.Module,
        *,
        slots: int,
        context_length: int,
        prefix_tokens: int,
        prefill_tokens: int,
        device: torch.device,
        dtype: torch.dtype,
    ) -> None:
        decoder = fused_decoder(model, context_length, device=device, dtype=dtype)
        blocks = prefix_tokens // BLOCK_TOKENS
        self._decoder = decoder
        self._step = compiled(decoder)
        self._cache = KeyValueCache(
            num_layers=len(decoder.layers) // LAYER_TENSORS,
            num_kv_heads=decoder.num_kv_heads,
            head_dim=decoder.head_dim,
            max_rows=slots,
            max_tokens=context_length,
            store_tokens=blocks * BLOCK_TOKENS,
            device=device,
            dtype=dtype,
        )
        self._device = device
        self._prefixes = PrefixIndex(num_blocks=blocks, block_tokens=BLOCK_TOKENS)
        self._slots = slots
        self._prefill_tokens = prefill_tokens
        self._waiting: list[Job] = []
        self._rows: list[Job] = []
        self._claims: dict[Key, Job] = {}
        """Key of a block that a running prefill will put into the store → the job of that prefill."""
        self._saves: list[tuple[int, int, int]] = []
        self._moves: list[tuple[int, int, int]] = []
        self._loads: list[tuple[int, int]] = []
        self._cells: list[np.ndarray[Any, Any]] = []
        """Cells of the store that the next step's saves, and then its loads, use; an array for each of them. The copies
        themselves are in `_saves`, `_moves` and `_loads` (see `StepPlan`)."""

    @property
    def busy(self) -> bool:
        """Whether a step has work to do."""
        return any(job.reason is None for job in self._rows) or any(job.reason is None for job in self._waiting)

    def add(self, job: Job) -> None:
        """Queue a job."""
        self._waiting.append(job)

    def refresh(self, model: nn.Module) -> None:
        """Copy the weights of `model`; keys and values computed with the old weights are recomputed or dropped."""
        refresh(self._decoder, model)
        self._forget()

    def stop(self) -> None:
        """Do nothing: each step ends by itself."""

    def release(self) -> None:
        """Free the memory of keys and values; `reclaim` must follow before the next step."""
        self._forget()
        self._cache.release()

    def reclaim(self) -> None:
        """Allocate the memory that `release` has freed."""
        self._cache.allocate()

    def _forget(self) -> None:
        """Drop all keys and values; those of running jobs are computed again."""
        self._prefixes.clear()
        self._claims.clear()
        self._saves.clear()
        self._cells.clear()
        for job in self._rows:
            # The row is prefilled again, with the tokens sampled so far.
            job.filled = 0

    def step(self, host: Host) -> None:
        """Advance every decoding row by one token, and every prefilling row by its share of the prefill budget."""
        # First, so that the rows of finished jobs are free for waiting ones.
        self._compact()
        self._admit()
        plan, sampled = self._plan()
        jobs = [self._rows[row] for row in sampled]
        results = self._step(self._cache.rows, self._cache.store, plan)
        hand_out(jobs, plan.draw, *results, version=host.version)
        for row, job in zip(sampled, jobs, strict=True):
            # When a prefill ends, for the other members of the group: all that they need not compute themselves.
            if row >= plan.num_decoding:
                self._save(row, job.request.prompt_ids[:-1])
            # When a job ends, for the next turn, which goes on after the last token: only whole blocks can match there.
            if job.reason is not None:
                self._save(row, job.ids[: job.filled // BLOCK_TOKENS * BLOCK_TOKENS])
        host.publish(jobs)

    def _compact(self) -> None:
        """Remove finished jobs and fill the gaps with rows from the end.

        Rows in use stay contiguous, so that the step computes no unused rows.
        """
        rows = self._rows
        row = 0
        while row < len(rows):
            if rows[row].reason is None:
                row += 1
                continue
            last = rows.pop()
            if row < len(rows):
                # If the last job is finished too, the next iteration replaces it again.
                rows[row] = last
                if last.reason is None and last.filled > 0:
                    self._moves.append((row, len(rows), last.filled))

    def _admit(self) -> None:
        """Give free rows to waiting jobs, first come, first served.

        A job waits while another job prefills the next block of its prompt. So in a group that shares one prompt, the
        first job computes it and the others copy it.
        """
        budget = self._prefill_tokens - sum(job.pending for job in self._rows if job.pending > 1)
        # No prefill is running, so no block is claimed by anyone.
        if budget == self._prefill_tokens:
            self._claims.clear()
        waiting: list[Job] = []
        for index, job in enumerate(self._waiting):
            if budget <= 0 or len(self._rows) == self._slots:
                waiting += self._waiting[index:]
                break
            if job.reason is not None:
                continue
            # The last token is always computed, because its hidden state gives the next token.
            prompt = job.ids[:-1]
            blocks = self._prefixes.match(prompt)
            key = self._prefixes.key_after(prompt, blocks)
            claimant = self._claims.get(key) if key is not None else None
            if claimant is not None and claimant.reason is None and claimant.pending > 1:
                waiting.append(job)
                continue
            if key is not None:
                # Other jobs that need the same block now wait for this one.
                self._claims[key] = job
            self._start(job, blocks, len(prompt))
            budget -= job.pending
        self._waiting = waiting

    def _start(self, job: Job, blocks: list[int], most: int) -> None:
        job.cached = job.filled = min(len(blocks) * BLOCK_TOKENS, most)
        if blocks:
            self._loads.append((len(self._rows), job.filled))
            self._cells.append(_cells(blocks, job.filled))
        self._rows.append(job)

    def _plan(self) -> tuple[StepPlan, list[int]]:
        """Lay out the next step; also return the rows that get a token, in the order of the results.

        The rows before the first one that prefills are decoded together. All rows from there on get spans, of one token
        too.
        """
        rows = self._rows
        num_decoding = next((row for row, job in enumerate(rows) if job.pending > 1), len(rows))
        spans = self._spans(num_decoding)
        ids = [job.ids[-1] for job in rows[:num_decoding]]
        positions = [job.filled for job in rows[:num_decoding]]
        owners = list(range(num_decoding))
        sampled, outputs = owners.copy(), owners.copy()
        for row, start, count in spans:
            ids += rows[row].ids[start : start + count]
            positions += range(start, start + count)
            owners += [row] * count
            if count == rows[row].pending:
                sampled.append(row)
                outputs.append(len(ids) - 1)
        for row, position in zip(owners, positions, strict=True):
            rows[row].filled = position + 1
        num_tokens, longest = len(ids), max((job.filled for job in rows[:num_decoding]), default=0)
        self._cache.reserve(len(rows), max(positions) + 1)
        if self._decoder.packed:
            padding = _padding(num_tokens)
            ids, positions, owners = (column + [0] * padding for column in (ids, positions, owners))
            outputs += [0] * _padding(len(outputs))
        plan = StepPlan(
            saves=self._saves,
            moves=self._moves,
            loads=self._loads,
            store_cells=self._to_device(np.concatenate((_NO_CELLS, *self._cells))),
            tokens=self._to_device(np.array((ids, positions, owners), dtype=np.int64)),
            num_tokens=num_tokens,
            num_decoding=num_decoding,
            longest=longest,
            spans=spans,
            outputs=self._to_device(np.array(outputs, dtype=np.int64)),
            draw=lay_out([rows[row] for row in sampled], self._device),
        )
        self._saves, self._moves, self._loads, self._cells = [], [], [], []
        return plan, sampled

    def _to_device(self, numbers: np.ndarray[Any, Any]) -> Tensor:
        return torch.from_numpy(numbers).to(self._device, non_blocking=True)

    def _spans(self, first: int) -> list[tuple[int, int, int]]:
        """Divide the step's prefill budget among the rows from `first` on."""
        budget = self._prefill_tokens
        spans = []
        for row, job in enumerate(self._rows[first:], first):
            count = min(job.pending, budget)
            if count > 0:
                spans.append((row, job.filled, count))
                budget -= count
        return spans

    def _save(self, row: int, ids: Sequence[int]) -> None:
        """Plan to copy the keys and values of `ids`, which fill `row`, into the prefix store."""
        known, blocks = self._prefixes.insert(ids)
        if blocks:
            start = known * BLOCK_TOKENS
            count = min(len(blocks) * BLOCK_TOKENS, len(ids) - start)
            self._saves.append((row, start, count))
            self._cells.append(_cells(blocks, count))


_NO_CELLS = np.zeros(0, dtype=np.int64)


def _cells(blocks: list[int], count: int) -> np.ndarray[Any, Any]:
    """Return the first `count` cells of blocks of the store."""
    starts = np.array(blocks, dtype=np.int64) * BLOCK_TOKENS
    cells: np.ndarray[Any, Any] = (starts[:, None] + np.arange(BLOCK_TOKENS)).reshape(-1)[:count]
    return cells


def _padding(count: int) -> int:
    """Return how many rows to add to `count`, so that few different numbers of rows occur: eight per power of two.

    oneDNN compiles a product for each number of rows when it first occurs, which takes 2 to 5 ms per matrix.
    """
    step = 1 << max(0, count.bit_length() - 4)
    return -count % step


def compiled(decoder: Decoder) -> Any:
    """Return `decoder` compiled to one TorchScript program, or as it is, which is slower, if torch compiles it no more.

    TorchScript is deprecated, but still the only way to run many operators as one program without a compiler on the
    machine. Read at torch 2.13; `tests/engines/test_versions.py` fails with a newer one.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        try:
            return torch.jit.script(decoder)
        except (AttributeError, RuntimeError) as error:
            log.warning(
                "torch %s does not compile the engine's decoder, which runs slower without; agentrl-core was read with "
                "torch 2.13: %s",
                torch.__version__,
                error,
            )
            return decoder
