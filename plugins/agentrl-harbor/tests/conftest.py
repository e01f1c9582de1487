"""Task directories for the tests, and the providers that this machine allows."""

import asyncio

import pytest

from agentrl_core.errors import ToolServerError
from agentrl_harbor.local import Local

DOCKERFILE = "FROM ubuntu:24.04\nWORKDIR /app\nCOPY words.txt .\nENV GREETING=hello\n"
TEST = """#!/bin/bash
if [ "$(cat hello.txt)" = "Hello, world!" ]; then
  echo 1 > /logs/verifier/reward.txt
else
  echo 0 > /logs/verifier/reward.txt
fi
"""


@pytest.fixture
def make_task(tmp_path):
    """Return a function that writes a task directory; `None` leaves a file out."""

    def make(name="hello", *, config="", **files):
        folder = tmp_path / "tasks" / name
        content = {
            "instruction.md": "Write `Hello, world!` into hello.txt.",
            "task.toml": f'schema_version = "1.4"\n{config}',
            "environment/Dockerfile": DOCKERFILE,
            "environment/words.txt": "one two\n",
            "tests/test.sh": TEST,
            **{key.replace("__", "/").replace("_DOT_", "."): value for key, value in files.items()},
        }
        for path, text in content.items():
            if text is not None:
                (folder / path).parent.mkdir(parents=True, exist_ok=True)
                (folder / path).write_text(text)
        return folder

    return make


@pytest.fixture(scope="session")
def needs_local():
    """Skip where the machine makes no namespaces."""

    async def start():
        provider = Local()
        await provider.start()
        await provider.close()

    try:
        asyncio.run(start())
    except ToolServerError as error:
        pytest.skip(str(error))
