"""Write and verify `manifest.json` of a folder of weights: a digest of each file, the step and the policy version."""

from __future__ import annotations

import hashlib
import json
from importlib import metadata
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any

import attrs

if TYPE_CHECKING:
    from pathlib import Path

MANIFEST = "manifest.json"

_LOADED = {".safetensors", ".bin", ".json", ".jinja", ".model", ".txt"}
"""Endings of the files in a model folder that are loaded; a checkpoint's optimizer state is none of them."""

_verified: set[tuple[str, int, int, int, str]] = set()
"""Files that this process has verified: (path, inode, size, modification time, digest). A resumed run loads its
checkpoint three times (learner, state, engine), and verifying 1 GB costs about 2 CPU seconds."""


@attrs.frozen(kw_only=True)
class Manifest:
    """Content of a verified manifest."""

    step: int | None
    """Number of optimizer steps behind the weights; None for published weights, from which no run resumes."""
    version: int
    """Policy version that the weights were published as."""
    digest: str
    """BLAKE2b digest of the manifest's own content, which has the digest of every file: it names these weights."""


def write_manifest(directory: Path, *, version: int, step: int | None = None) -> None:
    """Write a manifest of all files that are in `directory` now."""
    content = {
        "agentrl-core": metadata.version("agentrl-core"),
        "step": step,
        "version": version,
        "files": {
            path.relative_to(directory).as_posix(): {"bytes": path.stat().st_size, "blake2b": _digest(path)}
            for path in sorted(directory.rglob("*"))
            if path.is_file() and path.name != MANIFEST
        },
    }
    text = json.dumps(content | {"blake2b": _digest_of(content)}, indent=2)
    (directory / MANIFEST).write_text(text, encoding="utf-8")


def model_digests(directory: Path) -> dict[str, str]:
    """Return the digest of each file of a model folder from which weights, tokenizer or template are loaded.

    Reading takes about 2 CPU seconds per GB.
    """
    return {
        path.name: _digest(path)
        for path in sorted(directory.iterdir())
        if path.suffix in _LOADED and path.name != MANIFEST and path.is_file()
    }


def unlisted_files(directory: Path) -> list[str]:
    """Return the files of a folder that its manifest does not name; a loader may prefer one of them."""
    listed = listed_files(directory)
    files = (path.relative_to(directory).as_posix() for path in sorted(directory.rglob("*")) if not path.is_dir())
    return [name for name in files if name not in listed and name != MANIFEST]


def read_manifest(directory: Path) -> Manifest | None:
    """Verify every file of a folder and return its manifest; None if the folder has none.

    Raises `ValueError` with the file's name if one is missing or not as it was written. Files that the manifest does
    not name are ignored.
    """
    parsed = _parse(directory)
    if parsed is None:
        return None
    found, files = parsed
    for file, (size, expected) in files.items():
        _check(directory / file, size, expected)
    return found


def peek_manifest(directory: Path, *, name: str = MANIFEST) -> Manifest | None:
    """Return the manifest of a folder without reading the weights, which may take minutes; None if it has none.

    `name` is that of its file.

    Raises `ValueError` if the manifest itself is not as it was written.
    """
    parsed = _parse(directory, name)
    return None if parsed is None else parsed[0]


def listed_files(directory: Path) -> dict[str, tuple[int, str]]:
    """Return size and digest of each file that a folder's manifest names, without reading these files.

    Raises `ValueError` if there is no manifest, or it is not as it was written.
    """
    parsed = _parse(directory)
    if parsed is None:
        raise ValueError(f"{directory / MANIFEST} is missing")
    for name in parsed[1]:
        if PurePosixPath(name).is_absolute() or ".." in PurePosixPath(name).parts:
            raise ValueError(f"{directory / MANIFEST} names the file {name!r}, which is not in its folder")
    return parsed[1]


def note_verified(path: Path, digest: str) -> None:
    """Record that this process has just written a file whose content has a digest, so that it need not be read."""
    state = path.stat()
    _verified.add((str(path.absolute()), state.st_ino, state.st_size, state.st_mtime_ns, digest))


def _parse(directory: Path, name: str = MANIFEST) -> tuple[Manifest, dict[str, tuple[int, str]]] | None:
    """Return a folder's manifest, with size and digest of each file that it names; verify only the manifest."""
    path = directory / name
    try:
        content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        digest = content.pop("blake2b")
        found = Manifest(step=content["step"], version=content["version"], digest=digest)
        files = {str(file): (entry["bytes"], entry["blake2b"]) for file, entry in content["files"].items()}
    except FileNotFoundError:
        return None
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise ValueError(f"{path} is damaged: its content is not a manifest of weights") from error
    if digest != _digest_of(content):
        raise ValueError(f"{path} is damaged: expected the digest {digest} of its own content")
    return found, files


def _check(path: Path, size: int, expected: str) -> None:
    if not path.is_file():
        raise ValueError(f"{path} is missing, although {MANIFEST} in its folder lists it")
    state = path.stat()
    if state.st_size != size:
        raise ValueError(f"{path} is damaged: it has {state.st_size} bytes, but {size} were written")
    known = (str(path.absolute()), state.st_ino, state.st_size, state.st_mtime_ns, expected)
    if known in _verified:
        return
    if _digest(path) != expected:
        raise ValueError(f"{path} is damaged: its content is not what was written (its digest differs)")
    _verified.add(known)


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, file_hash).hexdigest()


def _digest_of(content: dict[str, Any]) -> str:
    return hashlib.blake2b(json.dumps(content, sort_keys=True).encode(), digest_size=32).hexdigest()


def file_hash() -> Any:
    """Return a new hash for files: BLAKE2b with 32 bytes.

    It is as strong as SHA-256, and faster on processors without SHA instructions.
    """
    return hashlib.blake2b(digest_size=32)
