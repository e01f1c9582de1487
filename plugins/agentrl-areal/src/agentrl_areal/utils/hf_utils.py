"""Counterpart of `areal.utils.hf_utils`: load Hugging Face tokenizers and apply their chat templates."""

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
    """Return the tokenizer of a folder or of the Hugging Face hub; without a padding token, its end token is used.

    Unlike AReaL's, this function does not run code that comes with a tokenizer, and downloads nothing that is on this
    machine already.
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
