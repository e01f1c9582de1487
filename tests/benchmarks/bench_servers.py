"""Sampling from a real chat model: the embedded engine, transformers, and real vLLM on the CPU.

SmolLM2-135M-Instruct, one thread each, temperature 1, logprobs, prompts of 200 random tokens and 64 new tokens each.
`c1`, `c8`, `c16`: that many requests at once. `group_8`: eight requests with one prompt. `bf16_c16`: the embedded
engine in bfloat16 against itself in float32. Tokens per CPU second are those of the whole process, and of vLLM's
process and its children. All take turns, and the median of the repeats counts.

vLLM's environment is made by the recipe of `nox -s servers` where it is missing (3.5 GB, four minutes); AGENTRL_VLLM
names a `vllm` program to use instead. AGENTRL_SMOLLM2 names a folder with the model.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib.util
import json
import os
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import psutil
import torch
from tests.benchmarks import bench_engine
from tests.benchmarks.bench_engine import NEW_TOKENS, Prompts, Serve, random_prompts
from tests.benchmarks.environment import UnavailableError
from tests.benchmarks.report import FOLDER, Row, report
from transformers import logging

from agentrl_core.engines.embedded import EmbeddedEngine

VOCABULARY = 49152
CASES = {"c1": 1, "c8": 8, "c16": 16, "group_8": 8}
START_S = 600
"""Longest time to wait for vLLM's start; 60 s on an idle machine."""
BARS = "bars for tokens_per_cpu_s: >= 1x of every peer; group_8 >= 1.5x of vllm; bf16_c16 >= 1.6x of float32"

Speeds = dict[str, list[tuple[float, float]]]
"""Tokens per CPU second and per second, of each repeat."""
CpuSeconds = Callable[[], float]


def main() -> None:
    """Measure, print the table and write build/benchmarks/servers.json."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--cases", default=",".join((*CASES, "bf16_c16")), help="comma-separated")
    options = parser.parse_args()
    # Otherwise a terminated benchmark would leave vLLM running.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    torch.set_num_threads(1)
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    cases, notes = options.cases.split(","), [BARS]
    with tempfile.TemporaryDirectory() as folder:
        directory = model_directory(Path(folder))
        rows: list[Row] = []
        with vllm_or_note(directory, notes) as vllm:
            for case in cases:
                if case in CASES:
                    rows += measure(case, directory, vllm, options.repeats)
        if "bf16_c16" in cases:
            rows += measure_bfloat16(directory, options.repeats)
    report("servers", rows, notes=notes)


def measure(case: str, directory: Path, vllm: tuple[Serve, CpuSeconds] | None, repeats: int) -> Iterator[Row]:
    """Yield the rows of one number of requests."""
    count = CASES[case]
    prompts = prompts_of(case)
    ways: dict[str, Any] = {
        "embedded": bench_engine.embedded,
        "generate": bench_engine.generate,
        "continuous_batching": bench_engine.batching,
    }
    speeds: Speeds = {name: [] for name in ways}
    for _ in range(repeats):
        for name, serving in ways.items():
            with serving(directory, count) as serve:
                serve(next(prompts))
                speeds[name].append(timed(serve, next(prompts), time.process_time))
        if vllm is not None:
            serve, cpu_s = vllm
            serve(next(prompts))
            speeds.setdefault("vllm", []).append(timed(serve, next(prompts), cpu_s))
    yield from compared(case, speeds)


def measure_bfloat16(directory: Path, repeats: int) -> Iterator[Row]:
    """Yield the rows of the embedded engine in bfloat16 against float32; both engines live side by side."""
    prompts = prompts_of("c16")
    speeds: Speeds = {"bfloat16": [], "float32": []}
    with ExitStack() as engines:
        served = {
            dtype: engines.enter_context(bench_engine.serving(EmbeddedEngine(model_dir=directory, dtype=dtype)))
            for dtype in ("bfloat16", "float32")
        }
        for serve in served.values():
            serve(next(prompts))
        for _ in range(repeats):
            for dtype, serve in served.items():
                speeds[dtype].append(timed(serve, next(prompts), time.process_time))
    yield from compared("bf16_c16", speeds)


def compared(case: str, speeds: Speeds) -> Iterator[Row]:
    """Yield the rows of the first way against each of the others."""
    medians = {
        name: [statistics.median(column) for column in zip(*of_name, strict=True)] for name, of_name in speeds.items()
    }
    (_, ours), *peers = medians.items()
    for name, theirs in peers:
        for metric, own, peer in zip(("tokens_per_cpu_s", "tokens_per_s"), ours, theirs, strict=True):
            yield Row(case=case, model="smollm2", metric=metric, ours=own, peer=peer, peer_name=name)


def prompts_of(case: str) -> Iterator[Prompts]:
    """Yield new prompts forever; those of a group are equal."""
    if case != "group_8":
        return random_prompts(CASES[case], VOCABULARY)
    return ([prompt] * 8 for (prompt,) in random_prompts(1, VOCABULARY))


def timed(serve: Serve, prompts: Prompts, cpu_s: CpuSeconds) -> tuple[float, float]:
    """Return new tokens per CPU second and per second."""
    cpu, wall = cpu_s(), time.perf_counter()
    tokens = serve(prompts)
    return tokens / (cpu_s() - cpu), tokens / (time.perf_counter() - wall)


def model_directory(folder: Path) -> Path:
    """Return a Hugging Face directory of SmolLM2-135M-Instruct in float32, built from its package."""
    if given := os.environ.get("AGENTRL_SMOLLM2"):
        return Path(given)
    from agentrl_smollm2.builder import build

    build(folder / "smollm2")
    return folder / "smollm2"


@contextmanager
def vllm_or_note(directory: Path, notes: list[str]) -> Iterator[tuple[Serve, CpuSeconds] | None]:
    """Serve with real vLLM; where it cannot be installed or started, add a note and yield None."""
    with ExitStack() as stack:
        try:
            server = stack.enter_context(vllm_server(directory))
        except UnavailableError as reason:
            notes.append(f"vLLM was not measured: {reason}")
            server = None
        yield server


@contextmanager
def vllm_server(directory: Path) -> Iterator[tuple[Serve, CpuSeconds]]:
    """Run vLLM on the CPU, and yield the function that asks it and the one that returns its CPU seconds so far."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    settings = ("--dtype", "float32", "--max-model-len", "1024", "--max-num-seqs", "32", "--enforce-eager")
    command = [vllm_program(), "serve", directory, "--served-model-name", "model", "--host", "127.0.0.1"]
    environ = {
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "OMP_NUM_THREADS": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
        "HF_HUB_OFFLINE": "1",
    }
    with tempfile.TemporaryFile() as log:
        server = subprocess.Popen(
            [*map(str, command), "--port", str(port), *settings],
            env=os.environ | environ,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            url = f"http://127.0.0.1:{port}"
            wait_until_ready(server, url, log)
            tree = psutil.Process(server.pid)
            yield lambda prompts: asyncio.run(ask_vllm(url, prompts)), lambda: cpu_seconds(tree)
        finally:
            stop(server)


def vllm_program() -> str:
    """Return the `vllm` program; make its environment where it is missing."""
    if given := os.environ.get("AGENTRL_VLLM"):
        return given
    path = Path(__file__).parents[1] / "servers" / "vllm_environment.py"
    spec = importlib.util.spec_from_file_location("vllm_environment", path)
    if spec is None or spec.loader is None:
        raise UnavailableError(f"{path} cannot be loaded")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    try:
        return str(module.vllm_program((FOLDER / "envs" / "vllm").absolute()))
    except (OSError, subprocess.CalledProcessError) as error:
        raise UnavailableError(str(error)) from error


def wait_until_ready(server: subprocess.Popen[bytes], url: str, log: Any) -> None:
    """Wait until vLLM answers; `UnavailableError` with the end of its log if it ends before."""
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline and server.poll() is None:
        try:
            with urllib.request.urlopen(f"{url}/health", timeout=5):
                return
        except OSError:
            time.sleep(1)
    log.seek(0)
    raise UnavailableError(log.read().decode(errors="replace")[-500:])


async def ask_vllm(url: str, prompts: Prompts) -> int:
    """Answer all prompts at once; return the number of new tokens."""
    return sum(await asyncio.gather(*[asyncio.to_thread(complete, url, prompt) for prompt in prompts]))


def complete(url: str, prompt: list[int]) -> int:
    """Return the number of tokens of one completion."""
    content = {
        "model": "model",
        "prompt": prompt,
        "max_tokens": NEW_TOKENS,
        "temperature": 1.0,
        "logprobs": 0,
        "ignore_eos": True,
        "return_token_ids": True,
    }
    headers = {"Content-Type": "application/json"}
    asked = urllib.request.Request(f"{url}/v1/completions", json.dumps(content).encode(), headers)
    with urllib.request.urlopen(asked, timeout=START_S) as answer:
        (choice,) = json.load(answer)["choices"]
    return len(choice["token_ids"])


def cpu_seconds(process: psutil.Process) -> float:
    """Return the CPU seconds of a process and its children so far."""
    members = [process, *process.children(recursive=True)]
    return sum(sum(member.cpu_times()[:2]) for member in members)


def stop(server: subprocess.Popen[bytes]) -> None:
    """End vLLM and its children."""
    tree = psutil.Process(server.pid)
    members = [tree, *tree.children(recursive=True)]
    for member in members:
        member.terminate()
    _, alive = psutil.wait_procs(members, timeout=20)
    for member in alive:
        member.kill()
    server.wait()


if __name__ == "__main__":
    main()
