"""Estimate the memory that a run needs on each device, part by part, and compare it with what the machine has."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import attrs

from agentrl_core.plugins.discovery import names_core

if TYPE_CHECKING:
    import torch

    from agentrl_core.config.schema import RunConfig

_LIBRARIES = 450 * 2**20
"""Resident memory of a process with torch, transformers and the gateway, before it has a model."""
_GPU_CONTEXT = 600 * 2**20
"""Memory of a CUDA context with the kernels of torch and its workspaces."""
_TILE = {"cpu": 2**20, "cuda": 2**26}
"""Logits of one tile of the loss (`losses/logprob.py`), each in fp32."""
_WIDE_LOGITS = 3
"""Tensors of a tile's size that are alive at once."""
_BYTES = {"float32": 4, "bfloat16": 2}


@attrs.frozen(kw_only=True)
class ModelShape:
    """Sizes of a causal language model that its memory follows from."""

    weights: int
    """Number of weights; tied ones count once."""
    layers: int
    hidden: int
    intermediate: int
    attention: int
    """Width of the queries: heads times their size."""
    keys: int
    """Width of the keys: key heads times their size; that of the values is the same."""
    vocabulary: int
    context: int

    @classmethod
    def read(cls, directory: Path) -> ModelShape:
        """Read the shape of a model directory, without its weights.

        Raises `OSError` or `ValueError` if it is broken.
        """
        import torch
        from transformers import AutoConfig, AutoModelForCausalLM

        config: Any = AutoConfig.from_pretrained(directory, local_files_only=True, trust_remote_code=False)
        library: Any = AutoModelForCausalLM
        with torch.device("meta"):
            module = library.from_config(config)
        return cls.of(module)

    @classmethod
    def of(cls, module: Any) -> ModelShape:
        """Return the shape of a transformers model."""
        config = module.config.get_text_config()
        heads = config.num_attention_heads
        size = getattr(config, "head_dim", None) or config.hidden_size // heads
        experts = getattr(config, "num_experts_per_tok", None) or 1
        width = getattr(config, "moe_intermediate_size", None) or getattr(config, "intermediate_size", None)
        return cls(
            weights=sum(weight.numel() for weight in module.parameters()),
            layers=config.num_hidden_layers,
            hidden=config.hidden_size,
            intermediate=experts * (width or 4 * config.hidden_size),
            attention=heads * size,
            keys=(getattr(config, "num_key_value_heads", None) or heads) * size,
            vocabulary=config.vocab_size,
            context=int(getattr(config, "max_position_embeddings", None) or 2**31),
        )


@attrs.frozen(kw_only=True)
class Load:
    """Amounts of tokens that learner and engine have to hold at once."""

    record: int
    """Tokens of the longest record, prompt and replies together."""
    pass_: int
    """Tokens of the largest forward pass of the learner."""
    running: int
    """Records that the engine samples at once."""

    @classmethod
    def of(cls, config: RunConfig, *, record: int, joined: int | None = None) -> Load:
        """Return the load of a config with records of up to `record` tokens.

        Groups share passes of up to `joined` tokens (`Learner.joined_tokens`); None: as the config says.
        """
        rollout, trainer = config.rollout, config.trainer
        records = rollout.tasks_per_step * rollout.group_size
        step = -(-records // trainer.updates) * record
        most = trainer.max_tokens_per_microbatch
        shared = most if joined is None else max(joined, rollout.group_size * record)
        return cls(
            record=record,
            pass_=max(record, min(most, step, shared)),
            running=min(rollout.max_concurrent_rollouts, config.engine.options.get("slots", 64)),
        )


@attrs.frozen(kw_only=True)
class Part:
    """Memory of one thing on one device."""

    what: str
    device: str
    bytes: int
    option: str = ""
    """Option that makes it smaller, with how; empty if none does."""
    turn: Literal["", "train", "sample"] = ""
    """Half of a step outside of which its memory is free (`trainer.offload`); empty: it is in use all the time."""


def parts(
    config: RunConfig,
    shape: ModelShape,
    load: Load,
    *,
    learner: torch.device,
    engine: torch.device | None,
    refers: bool,
) -> Iterator[Part]:
    """Yield the parts of a run's memory; `engine` is None if the engine runs elsewhere.

    `refers`: whether the loss reads a reference policy. With `trainer.offload` learner and engine may take turns on one
    GPU; what the learner moves then has its place in main memory, too.
    """
    found = list(_parts(config, shape, load, learner=learner, engine=engine, refers=refers))
    if learner.type != "cuda" or config.trainer.offload == "none":
        yield from found
        return
    moving = {"master weights", "optimizer state"}
    if config.trainer.offload == "all":
        moving |= {"weights", "reference policy"}
    takes_turns = learner == engine and config.rollout.max_head_offpolicyness == 0
    for part in found:
        yield attrs.evolve(part, turn=_turn(part, moving)) if takes_turns else part
    yield Part(what="offloaded learner", device="cpu", bytes=sum(part.bytes for part in found if part.what in moving))


def _turn(part: Part, moving: set[str]) -> Literal["", "train", "sample"]:
    if part.what.startswith(("engine's keys", "engine's prefix store")):
        return "sample"
    in_step = part.what in moving or part.what in ("gradients", "logits") or part.what.startswith("activations")
    return "train" if in_step else ""


def _parts(
    config: RunConfig,
    shape: ModelShape,
    load: Load,
    *,
    learner: torch.device,
    engine: torch.device | None,
    refers: bool,
) -> Iterator[Part]:
    """Yield the parts as they are without `trainer.offload`."""
    width, name = _BYTES[config.model.dtype], learner.type
    yield Part(what="libraries", device="cpu", bytes=_LIBRARIES)
    for device in {str(one) for one in (learner, engine) if one is not None and one.type == "cuda"}:
        yield Part(what="CUDA itself", device=device, bytes=_GPU_CONTEXT)
    smaller = "use a smaller model, or model.dtype: bfloat16"
    yield Part(what="weights", device=str(learner), bytes=shape.weights * width, option=smaller)
    if width < _BYTES["float32"]:
        yield Part(what="master weights", device=str(learner), bytes=4 * shape.weights)
    yield Part(what="gradients", device=str(learner), bytes=4 * shape.weights)
    yield Part(what="optimizer state", device=str(learner), bytes=8 * shape.weights)
    if refers:
        yield Part(
            what="reference policy",
            device=str(learner),
            bytes=shape.weights * width,
            option="leave out the correction that reads it, such as kl",
        )
    fewer = f"lower trainer.max_tokens_per_microbatch (now {config.trainer.max_tokens_per_microbatch})"
    if load.pass_ <= load.record:
        fewer = "shorten the records (sampling.max_tokens, engine.context_length)"
    if not config.trainer.gradient_checkpointing:
        fewer += ", or set trainer.gradient_checkpointing: true"
    yield Part(
        what=f"activations of {load.pass_:,} tokens",
        device=str(learner),
        bytes=_activations(config, shape, load, width),
        option=fewer,
    )
    yield Part(
        what="logits", device=str(learner), bytes=_WIDE_LOGITS * 4 * min(_TILE[name], load.pass_ * shape.vocabulary)
    )
    if engine is not None:
        yield from _engine_parts(config, shape, load, str(engine))


def _engine_parts(config: RunConfig, shape: ModelShape, load: Load, device: str) -> Iterator[Part]:
    options = config.engine.options
    width = _BYTES[options.get("dtype") or config.model.dtype]
    token = 2 * shape.layers * shape.keys * width
    prefixes = options.get("prefix_tokens", 32768)
    yield Part(what="engine's weights", device=device, bytes=shape.weights * width)
    yield Part(
        what=f"engine's keys and values of {load.running} x {load.record:,} tokens",
        device=device,
        bytes=token * load.running * load.record,
        option=f"lower rollout.max_concurrent_rollouts or engine.slots (now {load.running} run at once)",
    )
    yield Part(
        what=f"engine's prefix store of {prefixes:,} tokens",
        device=device,
        # On a CPU its memory is used as it fills: at first by the prompts, later by whatever was sampled.
        bytes=token * (min(prefixes, 4 * load.running * load.record) if device == "cpu" else prefixes),
        option=f"lower engine.prefix_tokens (now {prefixes})",
    )


def _activations(config: RunConfig, shape: ModelShape, load: Load, width: int) -> int:
    """Return the bytes that the forward pass keeps for the backward pass, and that pass's own largest tensors.

    Per token and layer of the Llama family: inputs and outputs of both norms and of the sums (6 hidden widths), queries
    before and after their rotation and the attention's output (3), keys and values (3), and in the feed-forward part
    gate, its activation, up and their product (4). Norms compute in fp32 whatever the weights have.
    """
    norms = 6 * shape.hidden * width + (2 * shape.hidden * 4 if width < 4 else 0)  # noqa: PLR2004 (bytes of fp32)
    layer = norms + width * (3 * shape.attention + 3 * shape.keys + 4 * shape.intermediate)
    # The backward pass of a layer has the gradients of its widest tensors beside them.
    passing = width * (3 * shape.intermediate + 4 * shape.hidden)
    if config.trainer.gradient_checkpointing:
        kept = shape.layers * shape.hidden * width + layer
    else:
        kept = shape.layers * layer
    if config.trainer.attention == "dense":
        kept += load.pass_ * 2 * shape.layers * width  # the mask, and each layer's probabilities, T x T
    return load.pass_ * (kept + passing)


def capacity(device: str) -> int:
    """Return the bytes that are free on a device: `cpu` or `cuda:N`."""
    if device != "cpu":
        import torch

        return torch.cuda.mem_get_info(torch.device(device))[0]
    return min(_free_on_machine(), _free_in_container())


def _free_on_machine() -> int:
    """Return the memory that the system can give without swapping; without such a number, no limit is known."""
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    except OSError:
        return 2**63
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith("MemAvailable:"))


def _free_in_container() -> int:
    """Return what the control group of this process may still take."""
    root = Path("/sys/fs/cgroup")
    try:
        limit, used = ((root / name).read_text(encoding="ascii").strip() for name in ("memory.max", "memory.current"))
        return 2**63 if limit == "max" else max(0, int(limit) - int(used))
    except (OSError, ValueError):
        return 2**63


def needed_on(found: Sequence[Part], device: str) -> int:
    """Return the bytes that the parts need on a device at once."""
    by_turn = {"": 0, "train": 0, "sample": 0}
    for part in found:
        if part.device == device:
            by_turn[part.turn] += part.bytes
    return by_turn[""] + max(by_turn["train"], by_turn["sample"])


def summary(found: Sequence[Part], device: str) -> str:
    """Return one line about a device: the total and its parts, the largest first."""
    here = sorted((part for part in found if part.device == device), key=lambda part: -part.bytes)
    total = needed_on(found, device)
    told = ", ".join(f"{part.what} {gigabytes(part.bytes)}" for part in here if part.bytes >= total / 100)
    return f"{device}: about {gigabytes(total)} needed ({told})"


def remedy(found: Sequence[Part], device: str) -> str:
    """Return the options that make the two largest parts on a device smaller."""
    here = sorted((part for part in found if part.device == device and part.option), key=lambda part: -part.bytes)
    return "; ".join(part.option for part in here[:2])


def gigabytes(amount: int) -> str:
    """Return an amount of memory as text."""
    return f"{amount / 2**30:.1f} GiB" if amount >= 2**30 else f"{amount / 2**20:.0f} MiB"


def embedded(config: RunConfig) -> bool:
    """Return whether the engine is in this process."""
    return names_core(config.engine.use, "embedded")
