"""Engine in front of model servers, the same for every kind of server; packages bring the kinds (`api.remote`)."""

from agentrl_core.errors import PluginError
from agentrl_core.plugins.catalog import install_hint


def __getattr__(name: str) -> object:
    if name != "OpenAICompatibleEngine":
        raise AttributeError(name)
    # The engine `openai_compatible` of earlier configs.
    sglang, vllm = install_hint("engines", "sglang"), install_hint("engines", "vllm")
    raise PluginError(
        f"engine: {{use: openai_compatible, server: sglang, …}} is now {{use: sglang, …}}; {sglang}; and server: vllm "
        f"is now {{use: vllm, …}}; {vllm}"
    )
