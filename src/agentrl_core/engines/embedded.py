"""Embedded engine: serves a Hugging Face causal language model in this process, on its own thread.

Callers in any thread put commands into the engine's inbox. The engine's thread runs them between two decode steps, and
is the only one that touches jobs, model and cache.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import functools
import logging
import queue
import threading
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from agentrl_core.api.weights import DirectoryWeights, Publication
from agentrl_core.concurrency.threads import call_on_thread
from agentrl_core.engines.constraints import Constraint, Grammars
from agentrl_core.engines.engine_weights import check_shapes, load_model, shapes, source_module
from agentrl_core.engines.jobs import Job, Mailbox, Post, check_request, deliver
from agentrl_core.engines.stopping import Decode, decoding, load_tokenizer, read_tokenizer
from agentrl_core.engines.switch_interval import restore_switches, shorten_switches
from agentrl_core.errors import EngineError, UnservableError
from agentrl_core.types import FinishReason

if TYPE_CHECKING:
    import torch
    from torch import nn

    from agentrl_core.api.weights import WeightSource
    from agentrl_core.engines.batch import ContinuousBatch
    from agentrl_core.engines.generate import GenerateBatch
    from agentrl_core.types import Chunk, GenerateRequest

log = logging.getLogger(__name__)

CLOSED = "the engine was closed"


class EmbeddedEngine:
    """Serves one model in this process (see `Engine`).

    `implementation`: `loop` is the engine's own continuous batching with a prefix cache, for Llama, Qwen2 and Qwen3.
    `generate` serves any architecture in padded batches. `auto` uses the loop if the model allows it. The
    choice is in the attribute `implementation`; `notice` tells the user about its consequences.

    `seed`: part of the random numbers of every request, besides the request's own seed. `slots`: most jobs that run at
    the same time. `prefix_tokens`: size of the prefix store. `prefill_tokens`: most prompt tokens computed in one step.

    `device`: `cpu`, `cuda`, `cuda:N`, or `auto`, the first GPU if there is one. `dtype`: type of weights, keys and
    values; a run passes `model.dtype`.

    Raises `EngineError` if the model cannot be loaded, or if `loop` is demanded and cannot serve it.
    """

    def __init__(
        self,
        *,
        model_dir: Path,
        seed: int = 0,
        slots: int = 64,
        context_length: int | None = None,
        prefix_tokens: int = 32768,
        prefill_tokens: int = 4096,
        threads: int = 1,
        implementation: Literal["auto", "loop", "generate"] = "auto",
        device: str = "auto",
        dtype: Literal["float32", "bfloat16"] = "float32",
    ) -> None:
        # Imported here, because a config's options are checked against this signature before torch is imported.
        import torch

        from agentrl_core.engines.batch import ContinuousBatch
        from agentrl_core.engines.fused import why_not_fused
        from agentrl_core.engines.generate import GenerateBatch
        from agentrl_core.models.placement import device_of

        self.version = 0
        self.notice = ""
        """Message to the user about how this model is served; empty if there is nothing to say."""
        self._model_dir = Path(model_dir)
        self._seed = seed
        self._threads = threads
        self._dtype: torch.dtype = getattr(torch, dtype)
        self.device = device_of(device, option="engine.device")
        self._inbox: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._lock = threading.Lock()
        """Guards the end of the thread: once `_ended` is set, nothing is put into the inbox."""
        self._ended: EngineError | None = EngineError("the engine has not been started")
        self._thread: threading.Thread | None = None
        self._jobs: dict[str, Job] = {}
        self._paused = False
        self._released = False
        self._freed: concurrent.futures.Future[None] | None = None
        """Set while `release` waits for the memory to be free."""
        self._closing = False
        self._cpu_seconds = 0.0
        # Read now: the directory may be a checkpoint that is deleted before the first stop string or grammar arrives.
        self._tokenizer = read_tokenizer(self._model_dir)
        model: Any = load_model(self._model_dir, self._dtype)
        self._vocab_size = model.get_input_embeddings().num_embeddings
        self._grammars = Grammars(self._tokenizer, vocab_size=self._vocab_size)
        self._shapes = shapes(model)
        self.context_length = _context_length(model, context_length)
        reason = why_not_fused(model)
        if implementation == "loop" and reason is not None:
            raise EngineError(f"{model_dir}: the engine's own loop does not serve {reason}; use implementation: auto")
        self._batch: ContinuousBatch | GenerateBatch
        if implementation == "generate" or reason is not None:
            self._batch = GenerateBatch(model, slots=slots, context_length=self.context_length, device=self.device)
            self.notice = _notice(reason)
        else:
            self._batch = ContinuousBatch(
                model,
                slots=slots,
                context_length=self.context_length,
                prefix_tokens=prefix_tokens,
                prefill_tokens=prefill_tokens,
                device=self.device,
                dtype=self._dtype,
            )
        self.implementation = self._batch.implementation

    @property
    def cpu_seconds(self) -> float:
        """CPU seconds of the engine's thread up to its last step."""
        return self._cpu_seconds

    def start(self) -> None:
        """Begin to serve; called once."""
        with self._lock:
            if self._thread is not None:
                raise EngineError("the engine has already been started")
            self._thread = threading.Thread(target=self._serve, name="engine", daemon=True)
            self._ended = None
        log.info("%s", self.notice or "the engine runs its own loop")
        shorten_switches()
        self._thread.start()

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[Chunk, None]:
        """Sample a request; see `Engine.generate`."""
        limit = check_request(request, context_length=self.context_length, vocab_size=self._vocab_size)
        if request.images:
            raise UnservableError(
                f"request {request.request_id}: this engine's model takes text only, and the request has "
                f"{len(request.images)} images. Leave them out, or send the request to a model with vision."
            )
        job = Job(
            request=request,
            mailbox=Mailbox(),
            limit=limit,
            decode=self._decode if request.sampling.stop else None,
            constraint=await self._constraint(request) if request.sampling.grammar else None,
            vocab_size=self._vocab_size,
            seed=self._seed,
        )
        self._ask(lambda: self._admit(job))
        ended = False
        try:
            while not ended:
                for chunk in await job.mailbox.take():
                    ended = chunk.finish_reason is not None
                    yield chunk
        finally:
            if not ended:
                self._tell(lambda: self._abort(job))

    async def abort(self, request_id: str) -> None:
        """End a request with finish reason `abort`; unknown ids are ignored."""
        await self._done(lambda: self._abort(self._jobs.get(request_id)))

    async def pause(self) -> None:
        """Wait until no decode step is running; none starts until `resume`."""
        await self._done(lambda: self._set_paused(paused=True))

    async def resume(self) -> None:
        """Continue after `pause`."""
        await self._done(lambda: self._set_paused(paused=False))

    async def load_weights(self, version: int, source: WeightSource) -> Publication:
        """Switch to new weights between two decode steps; running jobs recompute their keys and values with them."""
        begun = time.monotonic()
        read = functools.partial(source_module, source, self._dtype)
        # On a separate thread: the event loop's thread pool may be full of agents that never return.
        module = await call_on_thread(read, name="weights") if isinstance(source, DirectoryWeights) else read()
        stall: list[float] = []
        await self._done(lambda: stall.append(self._load(version, module)))
        return Publication(
            version=version,
            path="copy",
            bytes=sum(parameter.nbytes for parameter in module.parameters()),
            seconds=time.monotonic() - begun,
            stall_s=stall[0],
        )

    async def release(self) -> None:
        """Free the memory of keys and values, the prefix store too, and sample nothing until `reclaim`.

        For a learner that takes turns with the engine on one GPU. The weights stay, and may be replaced meanwhile.
        Running requests go on after `reclaim`: what they have sampled is prefilled again. Independent of `pause`.
        """
        freed: concurrent.futures.Future[None] = concurrent.futures.Future()
        await self._done(lambda: self._begin_release(freed))
        await asyncio.wrap_future(freed)

    async def reclaim(self) -> None:
        """Take the memory again that `release` has freed, and go on sampling."""
        await self._done(self._reclaim)

    def close(self) -> None:
        """Fail running requests and end the thread; idempotent. Blocks until the thread has ended."""
        with self._lock:
            thread, running = self._thread, self._ended is None
            if running:
                self._inbox.put(self._close)
            # Never started, so no thread sets `_ended`.
            elif thread is None:
                self._ended = EngineError(CLOSED)
        if thread is not None:
            thread.join()

    @property
    def _decode(self) -> Decode:
        return decoding(self._tokenizer or load_tokenizer(self._model_dir))

    async def _constraint(self, request: GenerateRequest) -> Constraint | None:
        grammar = request.sampling.grammar
        if grammar is None:
            return None
        stop_ids = request.sampling.stop_token_ids
        compile_it = functools.partial(self._grammars.constraint, grammar, stop_ids)
        try:
            return self._grammars.kept(grammar, stop_ids) or await call_on_thread(compile_it, name="grammar")
        except UnservableError as error:
            raise UnservableError(f"request {request.request_id}: {error}") from error

    # Commands to the engine's thread; called from any thread.

    def _ask(self, command: Callable[[], None]) -> None:
        """Queue a command for the engine's thread, which runs it between two steps; raises if the thread has ended."""
        with self._lock:
            self._check_alive()
            self._inbox.put(command)

    def _check_alive(self) -> None:
        if self._ended is not None:
            # A new exception each time: one instance raised in several tasks would mix their tracebacks.
            raise EngineError(str(self._ended)) from self._ended.__cause__

    def _tell(self, command: Callable[[], None]) -> None:
        """Queue a command; without effect if the thread has ended."""
        with self._lock:
            if self._ended is None:
                self._inbox.put(command)

    async def _done(self, command: Callable[[], None]) -> None:
        """Queue a command and wait until it has run; raises the `EngineError` that it raised."""
        done: concurrent.futures.Future[None] = concurrent.futures.Future()

        def carry_out() -> None:
            # The caller was cancelled while the command was queued.
            if not done.set_running_or_notify_cancel():
                return
            try:
                self._check_alive()
                command()
            except EngineError as error:
                done.set_exception(error)
            except Exception as error:
                # An unexpected error may leave the engine half changed: the caller gets it, and the thread ends with
                # it.
                done.set_exception(_failure(error))
                raise
            else:
                done.set_result(None)

        self._ask(carry_out)
        await asyncio.wrap_future(done)

    # Called on the engine's thread only.

    def _serve(self) -> None:
        import torch

        end = EngineError(CLOSED)
        try:
            torch.set_num_threads(self._threads)
            with torch.inference_mode():
                while not self._closing:
                    self._free()
                    # Idle: sleep until a command arrives.
                    if self._released or not self._batch.busy:
                        self._inbox.get()()
                    self.attend()
                    if self._batch.busy and not self._released:
                        self._batch.step(self)
                    self._cpu_seconds = time.thread_time()
        except Exception as error:
            log.exception("the engine failed")
            end = _failure(error)
        self._end(end)

    def attend(self) -> None:
        """Run the commands queued since the last step; blocks while the engine is paused."""
        while not self._closing:
            try:
                # While memory is to be released, not even a paused batch may wait here: `generate` holds some of it.
                command = self._inbox.get(block=self._paused and not self._released)
            except queue.Empty:
                return
            command()

    def publish(self, jobs: Sequence[Job]) -> None:
        """Send consumers their chunks: when their job ends, and at every step if they stream."""
        posts: list[Post] = []
        for job in jobs:
            if job.reason is not None or job.request.stream:
                posts.append((job.mailbox, job.failure or job.take_chunks(self.version)))
            if job.reason is not None:
                del self._jobs[job.request.request_id]
        deliver(posts)

    def _admit(self, job: Job) -> None:
        request_id = job.request.request_id
        # The thread may have ended while this command was in the inbox.
        refusal = self._ended
        if request_id in self._jobs:
            refusal = EngineError(f"request {request_id} is already running; ids are unique among running requests")
        if refusal is not None:
            job.reason = FinishReason.ABORT
            deliver([(job.mailbox, refusal)])
        else:
            self._jobs[request_id] = job
            self._batch.add(job)

    def _abort(self, job: Job | None) -> None:
        if job is not None and job.reason is None:
            job.reason = FinishReason.ABORT
            self.publish([job])

    def _set_paused(self, *, paused: bool) -> None:
        self._paused = paused

    def _begin_release(self, freed: concurrent.futures.Future[None]) -> None:
        if self._released:
            raise EngineError("the engine's memory has already been released; reclaim it first")
        self._released, self._freed = True, freed
        self._batch.stop()

    def _free(self) -> None:
        """Free the memory that a caller of `release` waits for."""
        if self._freed is None:
            return
        import torch

        self._batch.release()
        if self.device.type == "cuda":
            torch.cuda.empty_cache()  # gives the learner's process-wide allocator whole segments back
        freed, self._freed = self._freed, None
        if freed.set_running_or_notify_cancel():  # False: the caller was cancelled
            freed.set_result(None)

    def _reclaim(self) -> None:
        if not self._released:
            raise EngineError("the engine's memory has not been released")
        if self._freed is not None:
            # The caller of `release` was cancelled before anything was freed; what is freed later would be in use.
            self._freed.cancel()
            self._freed = None
        else:
            self._batch.reclaim()
        self._released = False

    def _load(self, version: int, module: nn.Module) -> float:
        """Copy a module's weights into the served one; return the seconds, in which nothing is sampled."""
        begun = time.monotonic()
        if version <= self.version:
            raise EngineError(
                f"weights of version {version} offered, but the engine has version {self.version}: versions must rise"
            )
        check_shapes(self._shapes, module)
        self._batch.refresh(module)
        self.version = version
        return time.monotonic() - begun

    def _close(self) -> None:
        self._closing = True
        self._fail(EngineError(CLOSED))

    def _fail(self, error: EngineError) -> None:
        """End every job with `error`; the batch drops jobs that have ended."""
        jobs, self._jobs = self._jobs, {}
        for job in jobs.values():
            job.reason = FinishReason.ABORT
        deliver([(job.mailbox, error) for job in jobs.values()])

    def _end(self, error: EngineError) -> None:
        """Fail all jobs and queued commands, and refuse new ones."""
        with self._lock:
            self._ended = error
        self._fail(error)
        if self._freed is not None and self._freed.set_running_or_notify_cancel():
            self._freed.set_exception(error)
        while not self._inbox.empty():
            self._inbox.get()()
        del self._batch  # frees the model and the cache; no command can reach them any more
        restore_switches()


def _failure(cause: Exception) -> EngineError:
    error = EngineError(f"the engine failed: {type(cause).__name__}: {cause}")
    error.__cause__ = cause
    return error


def _context_length(model: Any, wanted: int | None) -> int:
    """Return `wanted` or the model's own limit; `EngineError` if that is unknown or too small."""
    longest: int | None = getattr(model.config, "max_position_embeddings", None)
    if wanted is None and longest is None:
        raise EngineError(f"architecture {model.config.model_type} states no maximum length; set context_length")
    if wanted is not None and longest is not None and wanted > longest:
        raise EngineError(f"context_length is {wanted}, but the model has {longest} positions only; lower it")
    return wanted or longest or 0


def _notice(reason: str | None) -> str:
    why = "as configured" if reason is None else f"because the engine's own loop does not serve {reason}"
    return f"the engine uses transformers' generate {why}: no prefix cache, and requests wait for the running batch"
