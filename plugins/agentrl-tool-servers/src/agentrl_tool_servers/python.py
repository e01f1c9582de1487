"""The server `python`: run a Python program in the sandbox of agentrl-code, with limits and without a network.

Each call is a new process that ends with all that it began; nothing stays from one call to the next.
"""

from __future__ import annotations

import asyncio
import os
import sys
from typing import TYPE_CHECKING, Annotated, Final, Literal

from mcp.server import MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp.types import ToolAnnotations
from pydantic import Field

from agentrl_tool_servers import command

try:
    from agentrl_code.sandbox import SHARED, Limits, SandboxLostError, best_level, own_folder, refusal_of
except ModuleNotFoundError as error:
    raise ModuleNotFoundError("the server `python` needs the package agentrl-code: install it") from error

if TYPE_CHECKING:
    from agentrl_code.inside.levels import Level

Isolation = Literal["auto", "full", "confined", "limits"]
_LONGEST: Final = 200_000
"""Characters of a program and of its input."""
_LOST_TRIES: Final = 2


async def level_for(isolation: Isolation) -> Level:
    """Return the level of agentrl-code's sandbox to use; raise ValueError if the machine does not allow it."""
    if isolation == "auto":
        best, why = await best_level(SHARED)
        if best is None:
            raise ValueError(
                f"programs cannot be isolated here ({why}); on a machine that they may harm: --isolation limits"
            )
        return best
    if refusal := await refusal_of(isolation, SHARED):
        raise ValueError(f"this machine does not allow --isolation {isolation}: {refusal}")
    return isolation


def describe(level: Level) -> str:
    """Return what a level keeps from programs, for the log and for users."""
    return {
        "full": "programs run in namespaces of their own: no network, no other processes, no files but their own",
        "confined": "programs run under an allowlist of system calls: no network, no other processes, no files but "
        "their own; they can see which files exist",
        "limits": "programs run with limits on time, memory and output only: they have the network and the files of "
        "this user",
    }[level]


def server(limits: Limits | None = None, isolation: Isolation = "auto") -> MCPServer:
    """Return the server, with one tool, `run_python`; the level of isolation is found by the first call."""
    limits = limits or Limits(timeout_s=10, memory_mb=512, file_mb=16, output_kb=32)
    mcp = MCPServer("python", log_level="WARNING")
    places = asyncio.Semaphore(os.cpu_count() or 1)
    found: list[Level] = []

    @mcp.tool(
        description=(
            "Run a Python program and return what it prints. Print results; nothing is kept from one call to the next. "
            f"Limits: {limits.timeout_s:g} s, {limits.memory_mb} MB{'' if isolation == 'limits' else ', no network'}."
        ),
        # Programs change nothing that a later call could see, except with weaker isolation.
        annotations=ToolAnnotations(
            read_only_hint=isolation != "limits", idempotent_hint=isolation != "limits", open_world_hint=False
        ),
        structured_output=False,
    )
    async def run_python(
        code: Annotated[str, Field(max_length=_LONGEST)],
        stdin: Annotated[str, Field(max_length=_LONGEST, description="standard input")] = "",
    ) -> str:
        async with places:
            if not found:
                found.append(await _level(isolation))
            return await _run(code, stdin, limits, found[0])

    return mcp


async def _level(isolation: Isolation) -> Level:
    try:
        return await level_for(isolation)
    except ValueError as error:
        raise ToolError(str(error)) from error


async def _run(code: str, stdin: str, limits: Limits, level: Level) -> str:
    if "\0" in code:
        raise ToolError("the program contains a null character")
    code, stdin = (text.encode("utf-8", "replace").decode() for text in (code, stdin))
    for left in reversed(range(_LOST_TRIES)):
        with own_folder(level) as folder:
            try:
                ended = await SHARED.run("script", code, limits, level, folder=folder, given=stdin)
                break
            except SandboxLostError as error:
                # Either the program or the machine may be the cause. One that ends its sandbox does so again.
                if not left:
                    raise ToolError(f"the program's process was lost: {error}") from error
    text = ended.out[: limits.output_kb * 1024].rstrip("\n")  # of too much, more may come back
    if ended.why:
        text += f"\n[{ended.why}]"
    elif ended.status:
        cause = f"signal {-ended.status}" if ended.status < 0 else f"exit code {ended.status}"
        text += f"\n{ended.err.rstrip()}\n[{cause}]"
    return text.lstrip("\n") or "(the program printed nothing)"


def main(arguments: list[str] | None = None) -> None:
    """Run the server."""
    parser = command.parser("agentrl_tool_servers.python", "Python programs in a sandbox.")
    parser.add_argument("--timeout-s", type=float, default=10)
    parser.add_argument("--memory-mb", type=int, default=512, help="address space of a program")
    parser.add_argument("--file-mb", type=int, default=16, help="size of the files that a program writes")
    parser.add_argument("--output-kb", type=int, default=32, help="largest output")
    parser.add_argument(
        "--isolation",
        choices=("auto", "full", "confined", "limits"),
        default="auto",
        help="level of the sandbox, as of agentrl-code; auto: the best that this machine allows, except limits",
    )
    options = parser.parse_args(arguments)
    limits = Limits(
        timeout_s=options.timeout_s,
        memory_mb=options.memory_mb,
        file_mb=options.file_mb,
        output_kb=options.output_kb,
    )

    def make() -> MCPServer:
        level = asyncio.run(level_for(options.isolation))
        print(f"isolation '{level}': {describe(level)}", file=sys.stderr, flush=True)  # noqa: T201 - a command
        return server(limits, level)

    command.run(make, options.http)


if __name__ == "__main__":
    main()
