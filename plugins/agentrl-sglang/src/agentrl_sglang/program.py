"""Command line of SGLang, for `engine: {use: sglang, launch: …}`, read at 0.5.23."""

from __future__ import annotations

from agentrl_core.api.remote import ServerCommand, ServerLaunch


class SGLangProgram:
    """Start of an SGLang server (see `ServerProgram`)."""

    ready_path = "/health"  # it samples one token, so it answers 200 only when the server can

    def command(self, launch: ServerLaunch) -> ServerCommand:
        """Return `python -m sglang.launch_server` with its arguments."""
        argv = [
            *(launch.python, "-m", "sglang.launch_server", "--model-path", str(launch.model_dir)),
            *("--served-model-name", "policy"),  # the directory's name would change with a later start
            *("--host", launch.host, "--port", str(launch.port)),
            *("--dtype", launch.dtype, "--tp-size", str(launch.tp), "--device", launch.device),
        ]
        if launch.context_length is not None:
            argv += ["--context-length", str(launch.context_length)]
        if launch.gpu_memory is not None:
            argv += ["--mem-fraction-static", str(launch.gpu_memory)]
        # The model is a directory: nothing is to be looked up.
        return ServerCommand(argv=tuple(argv), environ={"HF_HUB_OFFLINE": "1"})
