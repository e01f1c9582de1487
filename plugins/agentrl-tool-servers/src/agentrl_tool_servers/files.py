"""The server `files`: list, read, write and edit text files in one folder, of which each episode has its own copy."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from mcp.server import MCPServer
from mcp.server.mcpserver import Context  # noqa: TC002 - the SDK reads the annotations
from mcp.server.mcpserver.exceptions import ToolError
from mcp.types import ToolAnnotations
from pydantic import Field

from agentrl_tool_servers import command
from agentrl_tool_servers.episodes import EpisodeFolders, episode_of
from agentrl_tool_servers.folder import FileLimits, Folder

Mode = Literal["episode", "shared", "read_only"]
_PAGE_CHARS: Final = 20_000
"""Characters that one call reads."""
_READS: Final = ToolAnnotations(read_only_hint=True, idempotent_hint=True, open_world_hint=False)
_WRITES: Final = ToolAnnotations(read_only_hint=False, idempotent_hint=True, open_world_hint=False)
_EDITS: Final = ToolAnnotations(read_only_hint=False, idempotent_hint=False, open_world_hint=False)

FilePath = Annotated[str, Field(description="relative to the folder, for example notes/today.txt")]


def server(
    folder: str = "", mode: Mode = "episode", *, limits: FileLimits | None = None, idle_s: float = 1800
) -> MCPServer:
    """Return the server.

    In the mode `episode`, every episode starts with a copy of `folder` (empty without one), which is removed `idle_s`
    after its last call. In the modes `shared` and `read_only` all episodes see `folder` itself.
    """
    limits = limits or FileLimits()
    use = _folders(folder, mode, limits, idle_s)
    mcp = MCPServer("files", log_level="WARNING")

    # Functions without `async` run on threads of the SDK.
    @mcp.tool(annotations=_READS, structured_output=False)
    def list_files(context: Context[Any, Any], path: FilePath = "") -> str:
        """List the files and folders below a folder."""
        with use(context) as files:
            return "\n".join(files.entries(path)) or "(empty)"

    @mcp.tool(annotations=_READS, structured_output=False)
    def read_file(
        context: Context[Any, Any],
        path: FilePath,
        first_line: Annotated[int, Field(ge=1, description="number of the first line to read")] = 1,
    ) -> str:
        """Read a text file."""
        with use(context) as files:
            return _page(files.read(path), first_line)

    if mode == "read_only":
        return mcp

    @mcp.tool(annotations=_WRITES, structured_output=False)
    def write_file(context: Context[Any, Any], path: FilePath, text: str) -> str:
        """Write a text file; an existing one is replaced."""
        with use(context) as files:
            files.write(path, text)
        return f"wrote {path}"

    @mcp.tool(annotations=_EDITS, structured_output=False)
    def edit_file(
        context: Context[Any, Any],
        path: FilePath,
        old: Annotated[str, Field(min_length=1, description="text that occurs once in the file")],
        new: Annotated[str, Field(description="text to put in its place")],
    ) -> str:
        """Replace a part of a text file."""
        with use(context) as files:
            text = files.read(path)
            if (found := text.count(old)) != 1:
                raise ToolError(f"`old` occurs {found} times in '{path}'; it must occur once")
            files.write(path, text.replace(old, new))
        return f"edited {path}"

    @mcp.tool(annotations=_EDITS, structured_output=False)
    def remove_file(context: Context[Any, Any], path: FilePath) -> str:
        """Remove a file or an empty folder."""
        with use(context) as files:
            files.remove(path)
        return f"removed {path}"

    return mcp


def _folders(
    folder: str, mode: Mode, limits: FileLimits, idle_s: float
) -> Callable[[Context[Any, Any]], contextlib.AbstractContextManager[Folder]]:
    """Return the function that opens the folder of a call's episode."""
    if folder and not Path(folder).is_dir():
        raise ValueError(f"--folder: there is no folder {folder}")
    if mode != "episode":
        if not folder:
            raise ValueError(f"--mode {mode} needs --folder")
        return lambda _context: contextlib.nullcontext(Folder(Path(folder), limits))
    if folder and (size := _size(folder)) > limits.total_bytes:
        raise ValueError(f"--folder: {folder} has {size:,} bytes, and an episode may have {limits.total_bytes:,}")
    folders = EpisodeFolders(lambda path: _copy(folder, path), idle_s=idle_s)

    @contextlib.contextmanager
    def use(context: Context[Any, Any]) -> Iterator[Folder]:
        with folders.use(episode_of(context)) as path:
            yield Folder(path, limits)

    return use


def _copy(source: str, target: Path) -> None:
    """Copy regular files and folders; links stay behind, because they may lead out of the folder."""
    if source:
        shutil.copytree(source, target, dirs_exist_ok=True, symlinks=True, ignore=_special)


def _special(parent: str, names: list[str]) -> list[str]:
    paths = {name: Path(parent, name) for name in names}
    return [name for name, path in paths.items() if path.is_symlink() or not (path.is_dir() or path.is_file())]


def _size(folder: str) -> int:
    return sum(
        os.lstat(os.path.join(parent, name)).st_size  # noqa: PTH118 - os.walk has no Path before Python 3.12
        for parent, _, names in os.walk(folder)
        for name in names
    )


def _page(text: str, first_line: int) -> str:
    """Return lines from `first_line` on, as many as fit, and how to read the next ones."""
    lines = text.splitlines(keepends=True)
    if first_line > max(len(lines), 1):
        raise ToolError(f"the file has {len(lines)} lines")
    shown, size = 0, 0
    for line in lines[first_line - 1 :]:
        size += len(line)
        if size > _PAGE_CHARS and shown:
            break
        shown += 1
    page = "".join(lines[first_line - 1 : first_line - 1 + shown])
    after = first_line + shown
    if len(page) > _PAGE_CHARS:
        return f"{page[:_PAGE_CHARS]}\n[line {first_line} is longer and was cut]"
    return page if after > len(lines) else f"{page}[the file has {len(lines)} lines; go on with first_line={after}]"


def main(arguments: list[str] | None = None) -> None:
    """Run the server."""
    parser = command.parser("agentrl_tool_servers.files", "Text files in a folder of each episode.")
    parser.add_argument("--folder", default="", help="files that every episode starts with")
    parser.add_argument(
        "--mode",
        choices=("episode", "shared", "read_only"),
        default="episode",
        help="episode: each has its own copy; shared, read_only: all see the folder itself",
    )
    default = FileLimits()
    parser.add_argument("--file-bytes", type=int, default=default.file_bytes)
    parser.add_argument("--total-bytes", type=int, default=default.total_bytes)
    parser.add_argument("--files", type=int, default=default.files, help="number of files and folders")
    parser.add_argument("--idle-s", type=float, default=1800, help="seconds without a call until a copy is removed")
    options = parser.parse_args(arguments)
    limits = FileLimits(file_bytes=options.file_bytes, total_bytes=options.total_bytes, files=options.files)
    command.run(lambda: server(options.folder, options.mode, limits=limits, idle_s=options.idle_s), options.http)


if __name__ == "__main__":
    main()
