"""Command line of vLLM, for `engine: {use: vllm, launch: …}`, read at 0.32."""

from __future__ import annotations

from pathlib import Path

from agentrl_core.api.remote import ServerCommand, ServerLaunch

FOR_SERVER = Path(__file__).parent / "for_server"
"""Folder for the PYTHONPATH of a server on the CPU, with a plugin of vLLM (see its `agentrl_vllm_cpu.py`)."""


class VLLMProgram:
    """Start of a vLLM server with all that training needs (see `ServerProgram`)."""

    ready_path = "/health"

    def command(self, launch: ServerLaunch) -> ServerCommand:
        """Return `vllm serve` with the routes and the logprobs that the engine needs."""
        argv = [
            *(launch.python, "-m", "vllm.entrypoints.cli.main", "serve", str(launch.model_dir)),
            *("--served-model-name", "policy"),  # the directory's name would change with a later start
            *("--host", launch.host, "--port", str(launch.port)),
            *("--dtype", launch.dtype, "--tensor-parallel-size", str(launch.tp)),
            "--enable-scale-out",  # the route from token ids to token ids
            *("--logprobs-mode", "processed_logprobs"),  # logprobs after the temperature
            "--enable-prompt-tokens-details",  # the count of cached tokens
            *("--generation-config", "vllm"),  # no sampling parameters of the model's own
        ]
        if launch.device == "cuda":
            argv.append("--enable-sleep-mode")
        if launch.context_length is not None:
            argv += ["--max-model-len", str(launch.context_length)]
        if launch.gpu_memory is not None:
            argv += ["--gpu-memory-utilization", str(launch.gpu_memory)]
        environ = {
            "VLLM_SERVER_DEV_MODE": "1",  # the routes that pause the server and load weights
            "VLLM_NO_USAGE_STATS": "1",
            "HF_HUB_OFFLINE": "1",  # the model is a directory: nothing is to be looked up
        }
        if launch.device == "cpu":
            # A prompt in several parts kills the server if the request has a seed: `gen.set_offset` in
            # v1/worker/gpu_model_runner.py, "CPU Generator does not use offset".
            argv += ["--no-enable-chunked-prefill", "--enforce-eager"]
            # Threads bound to cores would share them with the learner's, which knows nothing of that.
            environ |= {"VLLM_CPU_OMP_THREADS_BIND": "nobind", "VLLM_CPU_KVCACHE_SPACE": "1"}
        folders = (FOR_SERVER,) if launch.device == "cpu" else ()
        return ServerCommand(argv=tuple(argv), environ=environ, python_path=folders)
