"""Manifest of a folder of weights: a digest of each file, with the step and the policy version."""

from __future__ import annotations

import hashlib
import json
from importlib import metadata
from typing import TYPE_CHECKING, Any

import attrs

if TYPE_CHECKING:
    from pathlib import Path

MANIFEST = "manifest.json"

_verified: set[tuple[str, int, int, int, str]] = set()
"""Path, inode, size and time of change of files that this process has read, with the digest that they had: a resumed
run loads its checkpoint three times (learner, state, engine), and 1 GB costs about 2 CPU seconds."""


@attrs.frozen(kw_only=True)
class Manifest:
    """The manifest of one folder."""

    step: int | None
    """Optimizer steps behind the weights; None where nobody goes on from them."""
    version: int
    """Policy version that the weights were published as."""


def write_manifest(directory: Path, *, version: int, step: int | None = None) -> None:
    """Describe every file that is in `directory` now."""
    content = {
        "agentrl-core": metadata.version("agentrl-core"),
        "step": step,
        "version": version,
        "files": {
            str(path.relative_to(directory)): {"bytes": path.stat().st_size, "blake2b": _digest(path)}
            for path in sorted(directory.rglob("*"))
            if path.is_file() and path.name != MANIFEST
        },
    }
    text = json.dumps(content | {"blake2b": _digest_of(content)}, indent=2)
    (directory / MANIFEST).write_text(text, encoding="utf-8")


def read_manifest(directory: Path) -> Manifest | None:
    """Compare every file of a folder with its manifest; None where the folder has none.

    Raises `ValueError`, saying which file is not as it was written. Files that the manifest does not name are none of
    its business.
    """
    path = directory / MANIFEST
    try:
        content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        digest = content.pop("blake2b")
        found = Manifest(step=content["step"], version=content["version"])
        files = {directory / name: (entry["bytes"], entry["blake2b"]) for name, entry in content["files"].items()}
    except FileNotFoundError:
        return None
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise ValueError(f"{path} is damaged: it is not the manifest that is written with weights") from error
    if digest != _digest_of(content):
        raise ValueError(f"{path} is damaged: its own digest is not {digest}")
    for file, (size, expected) in files.items():
        _check(file, size, expected)
    return found


def _check(path: Path, size: int, expected: str) -> None:
    if not path.is_file():
        raise ValueError(f"{path} is missing; {MANIFEST} beside it names it")
    state = path.stat()
    if state.st_size != size:
        raise ValueError(f"{path} is damaged: it has {state.st_size} bytes, {size} were written")
    known = (str(path.absolute()), state.st_ino, state.st_size, state.st_mtime_ns, expected)
    if known in _verified:
        return
    if _digest(path) != expected:
        raise ValueError(f"{path} is damaged: its content is not what was written (its digest differs)")
    _verified.add(known)


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, _hash).hexdigest()


def _digest_of(content: dict[str, Any]) -> str:
    return hashlib.blake2b(json.dumps(content, sort_keys=True).encode(), digest_size=32).hexdigest()


def _hash() -> Any:
    """Make the hash of files: with 32 bytes as strong as SHA-256, and faster where the processor has no SHA."""
    return hashlib.blake2b(digest_size=32)
