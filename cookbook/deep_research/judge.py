"""Stand-in for a judge's model, so that the recipe runs offline: an answer is correct if it is the reference's text."""

from __future__ import annotations

import argparse
import asyncio

from agentrl_judge.testing import JudgeServer, honest

PORT = 8932


async def serve(port: int) -> None:
    """Serve until the process is ended."""
    async with JudgeServer(honest, port=port).up() as server:
        print(f"the judge answers at {server.url}", flush=True)
        await asyncio.Event().wait()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, default=PORT)
    asyncio.run(serve(parser.parse_args().port))
