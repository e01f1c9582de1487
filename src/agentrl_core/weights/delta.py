"""Write a policy version as its difference from another one, and put it together again from that.

A delta is a folder with a manifest, like a whole version, but a weight file of the model is there as NAME.patch: the
xor of its bytes with those of the base, in chunks, each compressed with zstd. Small steps of training leave sign,
exponent and most of the mantissa of a bfloat16 weight as they are, so almost all bytes of the xor are 0. `result.json`
is the manifest of the whole version, whose digests the patched files must have.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
import stat
import struct
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import attrs
import numpy as np
import zstandard

from agentrl_core.weights.manifest import MANIFEST, file_hash, listed_files, peek_manifest, write_manifest

if TYPE_CHECKING:
    from collections.abc import Callable

DELTA = "delta.json"
RESULT = "result.json"
_PATCH = ".patch"
_FORMAT = 1
_CHUNK_BYTES = 4 << 20
"""A multiple of every element's size, small enough that a few chunks per thread need no memory worth naming."""
_MOST_COMPRESSED_BYTES = 2 * _CHUNK_BYTES
"""More than zstd makes of any chunk."""
_LEVEL = 1
"""Of zstd: on xors of bfloat16 weights, level 3 saves less than 1 % of the bytes and costs up to twice the time."""
_HEADER = struct.Struct("<II")
"""Before each chunk of a patch: its bytes, and its compressed bytes; no compressed bytes stand for no difference."""


@attrs.frozen(kw_only=True)
class Base:
    """Version that a delta applies to."""

    version: int
    digest: str
    """Digest of the manifest of that whole version."""


def write_delta(base: Path, new: Path, draft: Path, *, version: int, base_version: int, threads: int = 1) -> None:
    """Write to the folder `draft` what differs between two whole versions, and its manifest.

    Raises `OSError` if the disk fails.
    """
    draft.mkdir(parents=True)
    before = listed_files(base)
    entries: dict[str, dict[str, Any]] = {}
    for name, (size, digest) in listed_files(new).items():
        if before.get(name) == (size, digest):
            entries[name] = {"how": "same"}
        elif name.endswith(".safetensors") and name in before and before[name][0] == size:
            width = _width(new / name)
            entries[name] = {"how": "patch", "width": width}
            _write_patch(base / name, new / name, _under(draft, name + _PATCH), width, threads)
        else:
            entries[name] = {"how": "whole"}
            shutil.copyfile(new / name, _under(draft, name))
    shutil.copyfile(new / MANIFEST, draft / RESULT)
    found = peek_manifest(base)
    assert found is not None  # noqa: S101 (a whole version that this process has written or verified)
    content = {
        "format": _FORMAT,
        "base": {"version": base_version, "manifest": found.digest},
        "files": entries,
    }
    (draft / DELTA).write_text(json.dumps(content, indent=2), encoding="utf-8")
    write_manifest(draft, version=version)


def begin_chain(folder: Path) -> None:
    """Mark a whole version as one that deltas follow, so that readers keep a copy of it."""
    (folder / DELTA).write_text(json.dumps({"format": _FORMAT, "base": None, "files": {}}), encoding="utf-8")


def is_chained(folder: Path) -> bool:
    """Return whether a version is a delta, or one that deltas follow."""
    return (folder / DELTA).is_file()


def read_base(folder: Path) -> Base | None:
    """Return the version that a delta applies to; None for a whole version.

    Raises `ValueError` if the file that says so is not what was written.
    """
    content = _read(folder)
    if content is None or content["base"] is None:
        return None
    return Base(version=content["base"]["version"], digest=content["base"]["manifest"])


def result_digest(folder: Path) -> str:
    """Return the digest of the manifest of the whole version that a folder holds, or that its delta makes.

    Raises `ValueError` if there is none, or it is not what was written.
    """
    found = peek_manifest(folder) if read_base(folder) is None else peek_manifest(folder, name=RESULT)
    if found is None:
        raise ValueError(f"{folder} is damaged: it has no manifest")
    return found.digest


def apply_delta(delta: Path, base: Path, draft: Path) -> None:
    """Write to the folder `draft` the whole version that a verified delta makes of a whole base.

    Raises `ValueError` with the file's name if the base is not the one that the delta was made from, or a patched file
    has not the digest that the trainer's file had; `OSError` if the disk fails.
    """
    content, wanted = _read(delta), peek_manifest(base)
    expected = None if content is None else read_base(delta)
    if content is None or expected is None or wanted is None or wanted.digest != expected.digest:
        raise ValueError(f"{delta} is no delta to the weights in {base}")
    draft.mkdir(parents=True)
    shutil.copyfile(delta / RESULT, draft / MANIFEST)
    for name, (size, digest) in listed_files(draft).items():
        entry, target = content["files"].get(name), _under(draft, name)
        if entry is None:
            raise ValueError(f"{delta / DELTA} does not tell how {name} is made")
        if entry["how"] == "patch":
            found = _apply_patch(delta / (name + _PATCH), base / name, target, int(entry["width"]))
        else:
            found = _copy((base if entry["how"] == "same" else delta) / name, target, size)
        if found != digest:
            raise ValueError(f"{target} is not what the trainer has written: its digest differs after patching")


def copy_whole(version: Path, draft: Path) -> None:
    """Copy the files that a whole version's manifest names, and the manifest, and verify them on the way.

    Raises `ValueError` with the file's name if one is missing or not as it was written.
    """
    draft.mkdir(parents=True)
    for name, (size, digest) in listed_files(version).items():
        target = _under(draft, name)
        try:
            found = _copy(version / name, target, size)
        except FileNotFoundError as error:
            raise ValueError(f"{version / name} is missing, although {MANIFEST} in its folder lists it") from error
        if found != digest:
            raise ValueError(f"{version / name} is damaged: its content is not what was written (its digest differs)")
    shutil.copyfile(version / MANIFEST, draft / MANIFEST)


def _read(folder: Path) -> dict[str, Any] | None:
    path = folder / DELTA
    try:
        content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        if content["format"] != _FORMAT:
            raise ValueError(f"{path}: expected the format {_FORMAT}, found {content['format']!r}; update agentrl-core")
        base = content["base"]
        if base is not None and not (isinstance(base["version"], int) and isinstance(base["manifest"], str)):
            raise TypeError  # noqa: TRY301 (the message is the same)
        {name: entry["how"] for name, entry in content["files"].items()}
    except FileNotFoundError:
        return None
    except (TypeError, KeyError, AttributeError, RecursionError, json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is damaged: its content does not describe a delta") from error
    return content


def _under(folder: Path, name: str) -> Path:
    """Return the path of a file in a folder, and make the folders between."""
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    return path


def _width(path: Path) -> int:
    """Return the size in bytes of most elements of a safetensors file."""
    with path.open("rb") as file:
        (length,) = struct.unpack("<Q", file.read(8))
        header = json.loads(file.read(length))
    sizes = {"F64": 8, "I64": 8, "F32": 4, "I32": 4, "BF16": 2, "F16": 2, "I16": 2}
    totals: dict[int, int] = {}
    for name, tensor in header.items():
        if name != "__metadata__":
            begin, end = tensor["data_offsets"]
            width = sizes.get(tensor["dtype"], 1)
            totals[width] = totals.get(width, 0) + end - begin
    return max(totals, key=lambda width: totals[width], default=1)


def _write_patch(base: Path, new: Path, patch: Path, width: int, threads: int) -> None:
    def encode(pair: tuple[bytes, bytes]) -> tuple[int, bytes]:
        before, after = (np.frombuffer(data, np.uint8) for data in pair)
        difference = before ^ after
        if not difference.any():
            return len(difference), b""
        # A compressor is not shared between threads.
        compressed = zstandard.ZstdCompressor(level=_LEVEL).compress(_to_planes(difference, width).tobytes())
        return len(difference), compressed

    with base.open("rb") as old_file, new.open("rb") as new_file, patch.open("wb") as out:
        for size, compressed in _mapped(encode, _pairs(old_file, new_file), threads):
            out.write(_HEADER.pack(size, len(compressed)))
            out.write(compressed)


def _apply_patch(patch: Path, base: Path, target: Path, width: int) -> str:
    """Write the patched file; return its digest."""
    digest = file_hash()
    decompressor = zstandard.ZstdDecompressor()
    try:
        with _opened(patch) as file, _opened(base) as old, target.open("wb") as out:
            while header := file.read(_HEADER.size):
                size, num_compressed = _HEADER.unpack(header)
                # Looked at before anything of these sizes is read: a damaged header may name gigabytes.
                if not 0 < size <= _CHUNK_BYTES or num_compressed > _MOST_COMPRESSED_BYTES:
                    raise ValueError(f"{patch} is damaged: it has a chunk of {size} bytes in {num_compressed}")
                after: bytes | memoryview = old.read(size)
                if len(after) != size:
                    raise ValueError(f"{patch} is longer than the file that it applies to, {base}")
                if num_compressed:
                    compressed = file.read(num_compressed)
                    if zstandard.frame_content_size(compressed) != size:
                        raise ValueError(f"{patch} is damaged: a chunk does not unpack to {size} bytes")
                    planes = np.frombuffer(decompressor.decompress(compressed, size), np.uint8)
                    if len(planes) != size or len(compressed) != num_compressed:
                        raise ValueError(f"{patch} is damaged: expected a chunk of {size} bytes, found {len(planes)}")
                    difference = _from_planes(planes, width)
                    difference ^= np.frombuffer(after, np.uint8)
                    after = difference.data
                digest.update(after)
                out.write(after)
    except (struct.error, zstandard.ZstdError) as error:
        raise ValueError(f"{patch} is damaged: {error}") from error
    found: str = digest.hexdigest()
    return found


def _copy(source: Path, target: Path, size: int) -> str:
    """Copy a file of `size` bytes; return the digest of what was copied. Raises `ValueError` for any other size."""
    digest = file_hash()
    with _opened(source) as file, target.open("wb") as out:
        if os.fstat(file.fileno()).st_size != size:
            raise ValueError(f"{source} is damaged: expected {size} bytes, as its manifest says")
        while chunk := file.read(_CHUNK_BYTES):
            digest.update(chunk)
            out.write(chunk)
    found: str = digest.hexdigest()
    return found


def _opened(path: Path) -> BinaryIO:
    """Open a regular file to read it; raise `ValueError` for a link, a pipe or a device, which may have no end."""
    try:
        number = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise ValueError(f"{path} is a link; expected a file") from error
        raise
    if not stat.S_ISREG(os.fstat(number).st_mode):
        os.close(number)
        raise ValueError(f"{path} is no regular file")
    return os.fdopen(number, "rb")


def _to_planes(data: np.ndarray[Any, Any], width: int) -> np.ndarray[Any, Any]:
    """Put the first bytes of all elements first, then the second ones, …: bytes of one kind compress better."""
    whole = len(data) // width * width
    planes = np.ascontiguousarray(data[:whole].reshape(-1, width).T).reshape(-1)
    return np.concatenate([planes, data[whole:]]) if whole < len(data) else planes


def _from_planes(data: np.ndarray[Any, Any], width: int) -> np.ndarray[Any, Any]:
    """Undo `_to_planes`; the result is a copy."""
    whole = len(data) // width * width
    elements = data[:whole].reshape(width, -1).T.reshape(-1)
    return np.concatenate([elements, data[whole:]])


def _pairs(old: BinaryIO, new: BinaryIO) -> Iterator[tuple[bytes, bytes]]:
    while after := new.read(_CHUNK_BYTES):
        yield old.read(len(after)), after


def _mapped(
    function: Callable[[tuple[bytes, bytes]], tuple[int, bytes]], pairs: Iterator[tuple[bytes, bytes]], threads: int
) -> Iterator[tuple[int, bytes]]:
    """Apply a function in order, on several threads; numpy and zstd compute without the interpreter's lock."""
    if threads == 1:
        yield from map(function, pairs)
        return
    with ThreadPoolExecutor(threads, thread_name_prefix="delta") as pool:
        while batch := [pair for _, pair in zip(range(2 * threads), pairs, strict=False)]:
            yield from pool.map(function, batch)
