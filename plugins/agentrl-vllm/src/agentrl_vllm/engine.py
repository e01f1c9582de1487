"""The engine `vllm`."""

from __future__ import annotations

from agentrl_core import RemoteEngine
from agentrl_vllm.program import VLLMProgram
from agentrl_vllm.protocol import VLLM


class VLLMEngine(RemoteEngine):
    """Samples from vLLM servers; `RemoteEngine` documents the options."""

    protocol = VLLM()
    program = VLLMProgram()
