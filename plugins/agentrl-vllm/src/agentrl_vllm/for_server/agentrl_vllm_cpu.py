# ruff: noqa: INP001 - vLLM imports it as a module of its own
"""Plugin inside a vLLM server on the CPU: its output layer uses the weights that were loaded last.

vLLM on the CPU packs the weight of each layer when the model is loaded, and again when new weights are loaded into the
layer. If the output layer shares its weight with the embedding, nothing is loaded into it, so its packed copy stays
that of the first weights (vLLM 0.32: `dispatch_cpu_unquantized_gemm` and `ParallelLMHead.tie_weights`). The server then
reports success and the new version, and samples from a mixture of both. Here such a layer multiplies with the weight
itself.

This file stands apart from agentrl: the server's environment has vLLM only. `agentrl_vllm.program` adds the folder to
the server's PYTHONPATH, where vLLM finds the plugin by its entry point.
"""

from importlib import import_module
from typing import Any


def register() -> None:
    """Replace the function that packs weights; called by vLLM in each of its processes."""
    if not import_module("vllm.platforms").current_platform.is_cpu():
        return
    layers = import_module("vllm.model_executor.layers.utils")
    pack = layers.dispatch_cpu_unquantized_gemm

    def dispatch_cpu_unquantized_gemm(layer: Any, remove_weight: bool) -> None:  # noqa: FBT001 (vLLM's signature)
        if remove_weight:
            pack(layer, remove_weight)
        else:  # embeddings and output layers, which alone may share a weight
            layer.cpu_linear = import_module("torch").nn.functional.linear

    layers.dispatch_cpu_unquantized_gemm = dispatch_cpu_unquantized_gemm  # type: ignore[attr-defined]
