"""The whole GRPO loop in one file: `python cookbook/loop_in_one_file.py [SEED]`, half a minute on a CPU.

The game: a number from 1 to 7 is hidden. The policy guesses up to three times, and hears "higher" or "lower" after a
wrong guess. Random guesses find the number in three games of ten; halving the interval finds it always. Nobody tells
the policy how: a transformer with random weights gets reward 1 if it found the number, else 0.

`agentrl run` has the same stages, with agents, a gateway, a store and checkpoints around them.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
from pathlib import Path

import attrs
import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from agentrl_core.api.losses import LossBatch
from agentrl_core.api.weights import ModuleWeights
from agentrl_core.batching import advantages
from agentrl_core.batching.packing import pack
from agentrl_core.batching.samples import Sample
from agentrl_core.engines.embedded import EmbeddedEngine
from agentrl_core.losses.aggregate import AggregationConfig, aggregate
from agentrl_core.losses.grpo import GRPO
from agentrl_core.models.progress_bars import no_progress_bars
from agentrl_core.training.policy import Policy
from agentrl_core.types import GenerateRequest, Sampling

START, HIGHER, LOWER, VOCABULARY = 0, 8, 9, 10  # token ids; 1 to 7 are the numbers
SECRETS, GUESSES = range(1, 8), 3
GROUP, STEPS, UPDATES, LR = 32, 36, 2, 1e-2


def tiny_policy() -> Qwen3ForCausalLM:
    """Make a transformer with 19 thousand random weights; any causal language model of Hugging Face works."""
    size = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "max_position_embeddings": 16}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8}
    return Qwen3ForCausalLM(Qwen3Config(vocab_size=VOCABULARY, **size, **heads))


async def play(engine: EmbeddedEngine, secret: int, group: int, number: int) -> tuple[Sample, float]:
    """Play one episode; return everything that the policy read and wrote, token by token, and the reward."""
    ids, positions, logprobs, versions, reward = [START], [], [], [], 0.0
    for turn in range(GUESSES):
        # Token ids go in; token ids come out, each with the logprob of sampling it and the version of the weights.
        sampling = Sampling(temperature=1.0, max_tokens=1, seed=number * GUESSES + turn)
        request = GenerateRequest(request_id=f"{number}-{turn}", prompt_ids=tuple(ids), sampling=sampling)
        async for chunk in engine.generate(request):
            positions += range(len(ids), len(ids) + len(chunk.ids))
            ids += chunk.ids
            logprobs += chunk.logprobs
            versions += [chunk.version] * len(chunk.ids)
        if ids[-1] == secret:
            reward = 1.0
            break
        ids.append(HIGHER if ids[-1] < secret else LOWER)  # the reply to a guess: it is read, never trained
    sample = Sample(
        ids=ids[: positions[-1] + 1],
        positions=positions,  # of the guesses: only these tokens are trained
        logprobs=logprobs,
        versions=versions,
        temperatures=[1.0] * len(positions),
        advantages=[],  # unknown until the whole group is done
        interactions=[number * GUESSES + turn for turn in range(len(positions))],
        sequences=[number] * len(positions),
        record=number,
        group=group,
    )
    return sample, reward


async def train(seed: int = 0) -> list[float]:
    """Train from nothing; return the mean reward of each step."""
    torch.manual_seed(seed)
    torch.set_num_threads(1)
    model = tiny_policy()
    policy = Policy(model)  # computes the logprobs of chosen tokens without holding all logits
    optimizer = torch.optim.AdamW(model.parameters(), lr=LR, betas=(0.9, 0.95), weight_decay=0.0)
    estimator = advantages.GRPO(std=False)
    loss, aggregation = GRPO(clip=0.2), AggregationConfig(aggregation="token_mean")
    with tempfile.TemporaryDirectory() as folder, no_progress_bars():
        model.save_pretrained(folder)
        engine = EmbeddedEngine(model_dir=Path(folder), seed=seed)  # a copy of the weights, and a thread of its own
    engine.start()
    history = []
    for step in range(STEPS):
        # 1. Sample: GROUP episodes of each task, all at the same time.
        tasks = [(secret, group) for group, secret in enumerate(SECRETS) for _ in range(GROUP)]
        played = await asyncio.gather(*(play(engine, *task, step * len(tasks) + i) for i, task in enumerate(tasks)))
        history.append(sum(reward for _, reward in played) / len(played))

        # 2. Advantages: reward of an episode minus the mean of its group, which had the same number to find.
        samples = []
        for group in range(len(SECRETS)):
            members = played[group * GROUP : (group + 1) * GROUP]
            values = estimator.advantages([reward for _, reward in members])
            for (sample, _), value in zip(members, values, strict=True):
                samples.append(attrs.evolve(sample, advantages=[value] * len(sample.positions)))

        # 3. Batch: a prefix that episodes share is in the batch once, and is computed once.
        update = pack(samples, max_tokens=4096, config=aggregation)

        # 4. Learn. In the second update the policy is no longer the one that sampled; the importance ratio corrects it.
        for _ in range(UPDATES):
            optimizer.zero_grad()
            for batch in update.micro_batches:
                logprobs, entropy = policy.logprobs(batch)
                view = LossBatch(  # one number per guess, also where guesses share tokens
                    logprobs=logprobs,
                    behaviour_logprobs=batch.behaviour_logprobs,
                    advantages=batch.advantages,
                    mask=batch.mask,
                    sequence=batch.sequence,
                    num_sequences=batch.num_sequences,
                    record=batch.record,
                    group=batch.group,
                    lag=step - batch.version,
                    entropy=entropy,
                )
                # -min(ratio * A, clip(ratio) * A), summed over all guesses / guesses of the whole update
                aggregate(aggregation, view, loss.loss(view), update.denominators).backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()

        # 5. Publish the new weights to the engine: it samples the next step's guesses with version step + 1.
        await engine.load_weights(step + 1, ModuleWeights(model))
        if step % 5 == 0:
            read, computed = sum(len(s.ids) for s in samples), sum(b.ids.numel() for b in update.micro_batches)
            print(f"step {step + 1:2}: reward {history[-1]:.2f}, {read} tokens read and written, {computed} computed")
    engine.close()
    return history


if __name__ == "__main__":
    rewards = asyncio.run(train(int(sys.argv[1]) if len(sys.argv) > 1 else 0))
    before, after = sum(rewards[:5]) / 5, sum(rewards[-5:]) / 5
    print(f"reward {before:.2f} in the first five steps, {after:.2f} in the last five")
    assert after > before + 0.25, "the policy did not learn to halve"
