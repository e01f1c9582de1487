"""Fixtures of the tests against model servers, which run only in `nox -s servers`.

`AGENTRL_VLLM` names the program `vllm` of an environment of its own, `AGENTRL_SGLANG_SOURCES` the folder with the
unpacked wheel of SGLang, `AGENTRL_SGLANG` the interpreter of an environment with SGLang. Without them, their tests are
not collected.
"""

import contextlib
import os
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from agentrl_core.api.weights import DirectoryWeights
from agentrl_core.engines.remote.launching import Launch, LaunchedServers
from agentrl_testing.policy import toy_policy
from agentrl_vllm.program import VLLMProgram

VLLM = os.environ.get("AGENTRL_VLLM")
SGLANG_SOURCES = os.environ.get("AGENTRL_SGLANG_SOURCES")
collect_ignore_glob = [
    *([] if VLLM else ["test_vllm_*.py"]),
    *([] if SGLANG_SOURCES else ["test_sglang_control.py", "test_sglang_engine.py", "test_sglang_training.py"]),
    *([] if "AGENTRL_SGLANG" in os.environ else ["test_sglang_gpu.py"]),
]

ONE_THREAD = {"OMP_NUM_THREADS": "1"}
TOY = {"hidden_size": 64, "num_heads": 2, "num_kv_heads": 1, "head_dim": 32, "context_length": 16384}
"""Shape of the tiny policy: vLLM's attention on the CPU knows no heads of fewer than 32 dimensions.

A server takes many seconds to fill its context, so that requests without a limit run until a test ends them.
"""


@pytest.fixture(scope="session")
def launch_section():
    """Return the section `launch` for real vLLM on the CPU."""

    def section(**options):
        python = str(Path(VLLM).parent / "python")
        return {"python": python, "device": "cpu", "env": ONE_THREAD, "ready_s": 600.0} | options

    return section


@pytest.fixture(scope="session")
def toys(tmp_path_factory):
    """Model directories of two tiny policies with different weights."""
    import torch

    # Forward passes of tiny models are the reference; on a busy machine, their threads would wait for each other.
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("toys")
    return [toy_policy(folder / f"toy-{seed}", seed=seed, **TOY) for seed in (0, 1)]


@pytest.fixture(scope="session")
def serve_vllm(tmp_path_factory, launch_section):
    """Start a server of a model directory, unless it runs; another one ends, because each takes 2 GB of memory."""
    running = {}

    def serve(model_dir, *args, **options):
        wanted = repr((model_dir, args, options))
        if wanted not in running:
            while running:
                running.popitem()[1].close()
            running[wanted] = LaunchedServers(
                VLLMProgram(),
                Launch(**launch_section(args=args, **options)),
                name="vLLM",
                model_dir=model_dir,
                dtype="float32",
                log_dir=tmp_path_factory.mktemp("logs"),
                on_end=pytest.fail,
            )
            running[wanted].start()
        return running[wanted].urls[0]

    yield serve
    while running:
        running.popitem()[1].close()


@pytest.fixture
def toy_server(serve_vllm, toys):
    """Address of a server of the first tiny policy."""
    return os.environ.get("AGENTRL_VLLM_URL") or serve_vllm(toys[0], "--max-num-seqs", "32")


@pytest.fixture(scope="session")
def new_weights(toys):
    return DirectoryWeights(toys[1])


@pytest.fixture(scope="session")
def decode(toys):
    tokenizer = Tokenizer.from_file(str(toys[0] / "tokenizer.json"))
    return lambda ids: tokenizer.decode(list(ids), skip_special_tokens=False)


@pytest.fixture(scope="session")
def serve_fake(tmp_path_factory):
    """Start a fake SGLang server of a model directory (see `sglang_fake`); all end with the session."""
    from tests.servers.sglang_processes import Fake

    with contextlib.ExitStack() as stack:

        def serve(model_dir, *options, port=0):
            fake = Fake(model_dir, tmp_path_factory.mktemp("sglang") / "log", *options, port=port)
            stack.callback(fake.close)
            return fake

        yield serve


@pytest.fixture(scope="session")
def serve_router(tmp_path_factory):
    """Start the real sglang-router in front of some addresses."""
    from tests.servers.sglang_processes import Router

    with contextlib.ExitStack() as stack:

        def serve(urls, *, port=0):
            router = Router(urls, tmp_path_factory.mktemp("router") / "log", port=port)
            stack.callback(router.close)
            return router

        yield serve


@pytest.fixture(scope="session")
def fake(serve_fake, toys):
    """A fake SGLang server of the first tiny policy; the engine loads the first weights again where it has others."""
    return serve_fake(toys[0])


@pytest.fixture(scope="session")
def sglang_classes():
    """The module of the released SGLang that has its request classes."""
    from tests.servers.sglang_schemas import load

    return load(SGLANG_SOURCES)[0]
