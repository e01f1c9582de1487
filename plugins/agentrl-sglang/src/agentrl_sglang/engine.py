"""The engine `sglang`."""

from __future__ import annotations

from agentrl_core import RemoteEngine
from agentrl_sglang.program import SGLangProgram
from agentrl_sglang.protocol import SGLang


class SGLangEngine(RemoteEngine):
    """Samples from SGLang servers; `RemoteEngine` documents the options."""

    protocol = SGLang()
    program = SGLangProgram()
