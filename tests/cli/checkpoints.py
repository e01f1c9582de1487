"""Checkpoint folders for tests of commands."""

from __future__ import annotations

from agentrl_core.run.directory import RunDirectory
from agentrl_core.weights.manifest import write_manifest


def checkpoint(folder, step, version):
    """Write a folder that looks like a checkpoint, but whose files mean nothing."""
    path = RunDirectory(folder).checkpoints / f"step-{step}"
    path.mkdir(parents=True)
    for name in ("model.safetensors", "optimizer.pt", "trainer_state.json", "config.json", "tokenizer.json"):
        (path / name).write_bytes(b"w" * 1000)
    write_manifest(path, step=step, version=version)
    return path
