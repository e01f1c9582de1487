"""Files below one folder, opened so that no path leaves it: not by `..`, not by links, not by links put there later.

Each part of a path is opened relative to the folder before it, without following links.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import attrs
from mcp.server.mcpserver.exceptions import ToolError

_DEEPEST: Final = 16
"""Folders within each other."""
_LONGEST_PATH: Final = 1000


@attrs.frozen(kw_only=True)
class FileLimits:
    """Limits of what an episode may read and write."""

    file_bytes: int = 1_000_000
    total_bytes: int = 16_000_000
    files: int = 1000
    """Files and folders, together."""


@attrs.frozen
class Folder:
    """A folder and its limits; every method raises ToolError, with a reason for the model."""

    root: Path
    limits: FileLimits

    def entries(self, path: str) -> list[str]:
        """Return what is in a folder and below, sorted, folders with `/` at their end; at most as many as the limit."""
        with self._opened(_parts(path)) as descriptor:
            found = [name for name, _ in self._walk(descriptor)]
        return sorted(found)

    def read(self, path: str) -> str:
        """Return the text of a file."""
        *parents, name = _file_parts(path)
        with self._opened(parents) as folder, _told(path):
            # Not blocking: opening a named pipe would otherwise wait for a writer.
            descriptor = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=folder)
            with os.fdopen(descriptor, "rb") as file:
                if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                    raise ToolError(f"'{path}' is not a file")
                data = file.read(self.limits.file_bytes + 1)
        if len(data) > self.limits.file_bytes:
            raise ToolError(f"'{path}' is larger than {self.limits.file_bytes:,} bytes")
        try:
            return data.decode()
        except UnicodeDecodeError as error:
            raise ToolError(f"'{path}' is not a text file") from error

    def write(self, path: str, text: str) -> None:
        """Write a file, with the folders that its path needs; an existing file is replaced as a whole."""
        *parents, name = _file_parts(path)
        data = text.encode("utf-8", "replace")
        if len(data) > self.limits.file_bytes:
            raise ToolError(f"the text has {len(data):,} bytes; a file may have {self.limits.file_bytes:,}")
        self._check_room(len(data), len(parents) + 1)
        with self._opened(parents, create=True) as folder, _told(path):
            with contextlib.suppress(FileNotFoundError):
                if not stat.S_ISREG(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode):
                    raise ToolError(f"'{path}' is not a file")
            # A name that nobody can guess: another episode could take it, and no write would succeed.
            begun = f".{secrets.token_hex(8)}.begun"
            descriptor = os.open(begun, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600, dir_fd=folder)
            try:
                with os.fdopen(descriptor, "wb") as file:
                    file.write(data)
                os.rename(begun, name, src_dir_fd=folder, dst_dir_fd=folder)
            except OSError:
                os.unlink(begun, dir_fd=folder)
                raise

    def remove(self, path: str) -> None:
        """Remove a file or an empty folder."""
        *parents, name = _file_parts(path)
        with self._opened(parents) as folder, _told(path):
            if stat.S_ISDIR(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode):
                os.rmdir(name, dir_fd=folder)
            else:
                os.unlink(name, dir_fd=folder)

    @contextlib.contextmanager
    def _opened(self, parts: list[str], *, create: bool = False) -> Iterator[int]:
        """Yield a descriptor of the folder with these parts."""
        path = "/".join(parts)
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW
        descriptor = os.open(self.root, os.O_RDONLY | os.O_DIRECTORY)
        try:
            for part in parts:
                with _told(path):
                    if create:
                        with contextlib.suppress(FileExistsError):
                            os.mkdir(part, 0o700, dir_fd=descriptor)
                    inner = os.open(part, flags, dir_fd=descriptor)
                os.close(descriptor)
                descriptor = inner
            yield descriptor
        finally:
            os.close(descriptor)

    def _walk(self, descriptor: int) -> Iterator[tuple[str, int]]:
        """Yield the names and sizes of files and folders, without following links; at most `limits.files`."""
        number = 0
        for parent, folders, files, folder in os.fwalk(".", dir_fd=descriptor, follow_symlinks=False):
            at = parent.removeprefix(".").removeprefix("/")
            for name in sorted(files + folders):
                try:
                    size = os.stat(name, dir_fd=folder, follow_symlinks=False).st_size
                except FileNotFoundError:
                    continue
                number += 1
                if number > self.limits.files:
                    return
                yield f"{at}/{name}".removeprefix("/") + ("/" if name in folders else ""), size

    def _check_room(self, new_bytes: int, new_files: int) -> None:
        with self._opened([]) as descriptor:
            found = list(self._walk(descriptor))
        if len(found) + new_files > self.limits.files:
            raise ToolError(f"there are {len(found):,} files and folders; {self.limits.files:,} are allowed")
        total = sum(size for name, size in found if not name.endswith("/"))
        if total + new_bytes > self.limits.total_bytes:
            raise ToolError(f"all files together have {total:,} bytes; {self.limits.total_bytes:,} are allowed")


def _parts(path: str) -> list[str]:
    """Return the parts of a path below the folder; `/x` and `./x` mean `x`."""
    if len(path) > _LONGEST_PATH:
        raise ToolError(f"a path may have {_LONGEST_PATH:,} characters")
    parts = [part for part in path.split("/") if part not in {"", "."}]
    if ".." in parts:
        raise ToolError(f"'{path}' leaves the folder; paths are relative to it and have no '..'")
    if len(parts) > _DEEPEST:
        raise ToolError(f"'{path}' has more than {_DEEPEST} parts")
    try:
        path.encode()
    except UnicodeEncodeError as error:
        raise ToolError("the path is not valid text") from error
    if "\0" in path:
        raise ToolError("the path contains a null character")
    return parts


def _file_parts(path: str) -> list[str]:
    parts = _parts(path)
    if not parts:
        raise ToolError("the path names the folder itself; name a file in it")
    return parts


@contextlib.contextmanager
def _told(path: str) -> Iterator[None]:
    """Raise errors of the system as ToolError, naming the path as the model wrote it."""
    try:
        yield
    except FileNotFoundError as error:
        raise ToolError(f"there is no '{path}'") from error
    except OSError as error:
        # O_NOFOLLOW makes a link an error: ELOOP, or with O_DIRECTORY ENOTDIR.
        raise ToolError(f"'{path}': {(error.strerror or 'not possible').lower()}") from error
