"""Tokens per CPU second of the embedded engine, of `generate`, and of transformers' continuous batching.

Random prompts of 200 tokens, 64 new tokens each, temperature 1, with logprobs, one torch thread; 1, 8 and 32
concurrent requests; Qwen3 of 0.34 and 4 million parameters. All three run in turns in one process; the median of the
repeats counts.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import random
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from tests.benchmarks.report import Row, report
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    ContinuousBatchingConfig,
    GenerationConfig,
    PreTrainedModel,
    logging,
)

from agentrl_core.engines.embedded import EmbeddedEngine
from agentrl_core.types import GenerateRequest, Sampling

NEW_TOKENS = 64
PROMPT_TOKENS = 200
REQUESTS = (1, 8, 32)
MODELS = {
    "0.34M": {"vocab_size": 450, "hidden_size": 96, "num_hidden_layers": 3, "head_dim": 24, "intermediate_size": 256},
    "4M": {"vocab_size": 2048, "hidden_size": 256, "num_hidden_layers": 4, "head_dim": 64, "intermediate_size": 768},
}

Prompts = list[list[int]]
Serve = Callable[[Prompts], int]
"""Answers all prompts; returns the number of new tokens."""


def main() -> None:
    """Measure, print the table and write build/benchmarks/engine.json."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=3)
    repeats = parser.parse_args().repeats
    torch.set_num_threads(1)
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    rows = [row for size in MODELS for row in measure_model(size, repeats)]
    report("engine", rows)


def measure_model(size: str, repeats: int) -> Iterator[Row]:
    """Yield the rows of one model size."""
    with tempfile.TemporaryDirectory() as folder:
        directory = build_model(size, Path(folder))
        for count in REQUESTS:
            speeds: dict[str, list[float]] = {"embedded": [], "generate": [], "continuous_batching": []}
            prompts = random_prompts(count, MODELS[size]["vocab_size"])
            for _ in range(repeats):
                for name, serving in (
                    ("embedded", embedded),
                    ("generate", generate),
                    ("continuous_batching", batching),
                ):
                    with serving(directory, count) as serve:
                        serve(next(prompts))
                        speeds[name].append(tokens_per_cpu_s(serve, next(prompts)))
            ours, *peers = ((name, statistics.median(of_name)) for name, of_name in speeds.items())
            for name, speed in peers:
                yield Row(
                    case=f"c{count}",
                    model=size,
                    metric="tokens_per_cpu_s",
                    ours=ours[1],
                    peer=speed,
                    peer_name=name,
                )


def build_model(size: str, directory: Path) -> Path:
    """Write a Qwen3 with random weights."""
    torch.manual_seed(0)
    config = AutoConfig.for_model(
        "qwen3",
        num_attention_heads=4,
        num_key_value_heads=2,
        tie_word_embeddings=True,
        max_position_embeddings=512,
        **MODELS[size],
    )
    AutoModelForCausalLM.from_config(config).save_pretrained(directory)
    return directory


def random_prompts(count: int, vocab_size: int) -> Iterator[Prompts]:
    """Yield new prompts forever: nothing is ever in a prefix store."""
    source = random.Random(0)
    while True:
        yield [[source.randrange(vocab_size) for _ in range(PROMPT_TOKENS)] for _ in range(count)]


def tokens_per_cpu_s(serve: Serve, prompts: Prompts) -> float:
    """Return new tokens per CPU second of the whole process."""
    before = time.process_time()
    tokens = serve(prompts)
    return tokens / (time.process_time() - before)


def load(directory: Path) -> PreTrainedModel:
    return AutoModelForCausalLM.from_pretrained(directory).eval().requires_grad_(False)


@contextmanager
def embedded(directory: Path, _count: int) -> Iterator[Serve]:
    """Serve each prompt as a request of its own to `EmbeddedEngine`."""
    with serving(EmbeddedEngine(model_dir=directory)) as serve:
        yield serve


@contextmanager
def serving(engine: EmbeddedEngine) -> Iterator[Serve]:
    """Run an engine, and serve each prompt as a request of its own, with random numbers of its own."""
    engine.start()
    numbers = itertools.count()

    async def one(prompt: list[int]) -> int:
        number = next(numbers)
        sampling = Sampling(max_tokens=NEW_TOKENS, seed=number)
        asked = GenerateRequest(request_id=str(number), prompt_ids=tuple(prompt), sampling=sampling)
        return sum([len(chunk.logprobs) async for chunk in engine.generate(asked)])

    async def together(prompts: Prompts) -> int:
        return sum(await asyncio.gather(*[one(prompt) for prompt in prompts]))

    yield lambda prompts: asyncio.run(together(prompts))
    engine.close()


@contextmanager
def generate(directory: Path, _count: int) -> Iterator[Serve]:
    """Serve all prompts as one batch of `model.generate`."""
    model = load(directory)

    @torch.inference_mode()
    def serve(prompts: Prompts) -> int:
        ids = torch.tensor(prompts)
        result = model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            generation_config=GenerationConfig(do_sample=True, top_k=0, max_new_tokens=NEW_TOKENS, pad_token_id=0),
            return_dict_in_generate=True,
            output_logits=True,
        )
        logprobs = torch.log_softmax(torch.stack(result.logits, 1), -1)
        chosen = logprobs.gather(2, result.sequences[:, PROMPT_TOKENS:, None])
        return sum(len(row) for row in chosen.squeeze(2).tolist())

    yield serve


@contextmanager
def batching(directory: Path, _count: int) -> Iterator[Serve]:
    """Serve each prompt as a request of its own to transformers' continuous batching."""
    model = load(directory)
    model.set_attn_implementation("sdpa")
    manager = model.init_continuous_batching(
        GenerationConfig(max_new_tokens=NEW_TOKENS, do_sample=True, top_k=0, eos_token_id=-1),
        ContinuousBatchingConfig(num_blocks=128, max_batch_tokens=4096, return_logprobs=True),
    )
    manager.start()
    numbers = itertools.count()

    async def one(prompt: list[int]) -> int:
        loop = asyncio.get_running_loop()
        done = loop.create_future()
        name = str(next(numbers))
        manager.register_result_handler(
            name, lambda result: result.is_finished() and not done.done() and done.set_result(result)
        )
        manager.add_request(prompt, request_id=name, max_new_tokens=NEW_TOKENS)
        return len((await done).logprobs)

    async def together(prompts: Prompts) -> int:
        return sum(await asyncio.gather(*[one(prompt) for prompt in prompts]))

    yield lambda prompts: asyncio.run(together(prompts))
    manager.stop(block=True)


if __name__ == "__main__":
    main()
