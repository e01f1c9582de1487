"""Tokenizers and chat templates of Hugging Face."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

from agentrl_areal.elsewhere import explain

__all__ = ["apply_chat_template", "load_hf_tokenizer"]


def apply_chat_template(
    tokenizer: Any, messages: Sequence[Mapping[str, Any]], *, tokenize: bool = True, **kwargs: Any
) -> Any:
    """Return a conversation as a list of token ids, [T], or as text with `tokenize=False`."""
    rendered = tokenizer.apply_chat_template(messages, tokenize=tokenize, **kwargs)
    if not tokenize:
        return rendered
    return list(rendered["input_ids"] if isinstance(rendered, Mapping) else rendered)


@functools.lru_cache(maxsize=8)
def load_hf_tokenizer(model_name_or_path: str, fast_tokenizer: bool = True, padding_side: str | None = None) -> Any:  # noqa: FBT001, FBT002 (AReaL's)
    """Return the tokenizer of a folder or of the hub; its padding token is its end token, where it has none.

    Unlike AReaL it runs no code that lies beside the tokenizer, and downloads nothing that is here already.
    """
    from transformers import AutoTokenizer

    options = {} if padding_side is None else {"padding_side": padding_side}
    tokenizer = AutoTokenizer.from_pretrained(
        model_name_or_path, use_fast=fast_tokenizer, trust_remote_code=False, **options
    )
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token_id = tokenizer.eos_token_id
    return tokenizer


_ELSEWHERE = {
    "load_hf_processor_and_tokenizer": "calls in token ids show no images; use load_hf_tokenizer for text",
    "download_from_huggingface": "use huggingface_hub.hf_hub_download",
    "load_hf_or_local_file": "use huggingface_hub.hf_hub_download",
}


def __getattr__(name: str) -> Any:
    raise explain(__name__, name, _ELSEWHERE)
