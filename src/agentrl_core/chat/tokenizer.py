"""Tokenize and decode text with a model directory's tokenizer.json, without importing transformers.

Also reads the other text settings of the directory: chat template, special tokens and stop token ids.
"""

from __future__ import annotations

import functools
import json
from typing import TYPE_CHECKING, Any

import attrs
import tokenizers

from agentrl_core.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from pathlib import Path

_REPLACEMENT = "\ufffd"
_SPECIAL_NAMES = ("bos_token", "eos_token", "pad_token", "unk_token", "sep_token", "cls_token", "mask_token")


_CHARS_PER_TOKEN, _NEXT_BEGINNING = 16, 4
"""Length of the first prefix of a text that is checked, in characters per allowed token (a text with that many tokens
is hardly ever longer), and the factor by which each further prefix is longer."""


class TooManyTokensError(Exception):
    """A text certainly has more tokens than it may have; `tokens` is a lower bound of their number."""

    def __init__(self, tokens: int) -> None:
        super().__init__(f"at least {tokens} tokens")
        self.tokens = tokens


class TextTokenizer:
    """Tokenizes exactly the given text: no token is added, and special tokens in the text become their ids."""

    def __init__(self, tokenizer: tokenizers.Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._added: dict[int, str] = {
            token_id: token.content for token_id, token in tokenizer.get_added_tokens_decoder().items()
        }
        self._anchor = ""
        steps = _decoder_steps(tokenizer)
        # Byte-level tokenizers decode token by token; the table of bytes is faster than the library.
        self._bytes = _TokenBytes(tokenizer) if [step["type"] for step in steps] == ["ByteLevel"] else None

    @property
    def vocab_size(self) -> int:
        """Number of token ids, added tokens included."""
        return self._tokenizer.get_vocab_size(with_added_tokens=True)

    def encode(self, text: str, *, most_tokens: int | None = None) -> list[int]:
        """Return the token ids [T] of `text`.

        Raises `TooManyTokensError` if there are certainly more than `most_tokens`. A text with slightly more passes:
        only prefixes are checked.
        """
        if most_tokens is not None:
            self._check_beginnings(text, most_tokens)
        return self._encode(text)

    def _check_beginnings(self, text: str, most_tokens: int) -> None:
        """Refuse a text if one of its prefixes has twice as many tokens as the whole text may have.

        Tokenizing takes about a second for 3 MB, so an overlong text is refused early. The text after a prefix changes
        how the prefix's end is tokenized, but never halves its tokens.
        """
        num_chars = _CHARS_PER_TOKEN * most_tokens
        while num_chars < len(text):
            found = len(self._encode(text[:num_chars]))
            if found > 2 * most_tokens:
                raise TooManyTokensError(found // 2)
            num_chars *= _NEXT_BEGINNING

    def _encode(self, text: str) -> list[int]:
        # The fast variant leaves out the offsets of the tokens, which nothing here needs.
        return self._tokenizer.encode_batch_fast([text], add_special_tokens=False)[0].ids

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of `ids`, special tokens included; an incomplete UTF-8 sequence becomes U+FFFD."""
        if self._bytes is not None:
            return b"".join(map(self._bytes.__getitem__, ids)).decode(errors="replace")
        return self._tokenizer.decode(ids, skip_special_tokens=False)

    def decode_plain(self, ids: Sequence[int]) -> str:
        """Return the text of `ids` without special tokens."""
        return self._tokenizer.decode(ids, skip_special_tokens=True)

    def id_of(self, token: str) -> int | None:
        """Return the id of a whole token; None if the vocabulary lacks it."""
        return self._tokenizer.token_to_id(token)

    def is_added(self, token: str) -> bool:
        """Return whether `token` is an added (special) token."""
        return self.id_of(token) in self._added

    def added_token(self, token_id: int) -> str | None:
        """Return the text of an added (special) token; None for ordinary ids."""
        return self._added.get(token_id)

    def anchor_on(self, token: str) -> None:
        """Tokenize continuations as if they followed `token`.

        Some tokenizers mark the beginning of a text (SentencePiece's leading space). The text after a sampled turn is
        not a beginning, so it is tokenized after a special token, whose id is then removed. Without effect on other
        tokenizers.
        """
        token_id = self.id_of(token)
        probes = ("a", " a", "\n")
        if token_id is None or token_id not in self._added:
            return
        behind = [self.encode(token + probe) for probe in probes]
        if all(ids[:1] == [token_id] for ids in behind) and any(
            ids[1:] != self.encode(probe) for ids, probe in zip(behind, probes, strict=True)
        ):
            self._anchor = token

    def encode_continuation(self, text: str, *, most_tokens: int | None = None) -> list[int]:
        """Return the token ids [T] of text in the middle of a conversation; see `encode` for `most_tokens`."""
        ids = self.encode(self._anchor + text, most_tokens=most_tokens)
        return ids[1:] if self._anchor else ids

    def decoder(self) -> StreamDecoder:
        """Return a decoder for ids that arrive one by one."""
        return StreamDecoder(self.decode, self._byte_ids)

    @functools.cached_property
    def _byte_ids(self) -> frozenset[int] | None:
        """Ids of single-byte tokens (`<0xE2>`), whose text depends on the whole run of them.

        None if no text is certain before the last token.
        """
        kinds = _decoder_steps(self._tokenizer)
        if not _is_growing(kinds):
            return None
        if not any(step["type"] == "ByteFallback" for step in kinds):
            return frozenset()
        found = (self._tokenizer.token_to_id(f"<0x{byte:02X}>") for byte in range(256))
        return frozenset(token_id for token_id in found if token_id is not None)


class _TokenBytes(dict[int, bytes]):
    """Cache of the bytes of each token of a byte-level tokenizer.

    Joining bytes decodes in a quarter of the time that the tokenizers library takes.
    """

    def __init__(self, tokenizer: tokenizers.Tokenizer) -> None:
        self._tokenizer = tokenizer

    def __missing__(self, token_id: int) -> bytes:
        token = self._tokenizer.id_to_token(token_id) or ""
        try:
            found = bytes(map(_BYTE_OF.__getitem__, token))
        except KeyError:  # added tokens are stored as plain text, not in the byte alphabet
            found = token.encode()
        self[token_id] = found
        return found


def _byte_level_alphabet() -> dict[str, int]:
    """Return the byte that each character of the byte-level alphabet stands for.

    Printable characters stand for their own byte; the other bytes are written as the characters from U+0100 on.
    """
    # The mapping of GPT-2's byte-level BPE. `tokenizers` exposes its characters, but not their bytes.
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = (byte for byte in range(256) if byte not in printable)
    return {chr(byte): byte for byte in printable} | {chr(256 + place): byte for place, byte in enumerate(others)}


_BYTE_OF = _byte_level_alphabet()


class StreamDecoder:
    """Decodes a growing sequence of ids; the concatenated pieces equal the beginning of `decode` of all ids.

    Text is returned once no later id can change it. Ids whose text was returned serve as context for the next ones,
    because a tokenizer may treat the beginning of a text differently.
    """

    def __init__(self, decode: Callable[[Sequence[int]], str], byte_ids: frozenset[int] | None) -> None:
        self._decode = decode
        self._byte_ids = byte_ids
        self._context: list[int] = []
        self._known = ""
        """Decoded text of the context ids."""
        self._new: list[int] = []
        self._retry_at = 0
        """Length of `_new` at which decoding is tried again. It grows, because otherwise a long run of ids that form no
        text would take quadratic time."""

    def feed(self, ids: Iterable[int]) -> str:
        """Return the text that became certain with `ids`."""
        self._new.extend(ids)
        new = self._new
        # A run of byte tokens is decoded as a whole, so its text is uncertain until another token follows.
        if self._byte_ids is None or not new or len(new) < self._retry_at or new[-1] in self._byte_ids:
            return ""
        text = self._decode(self._context + new)
        if text.endswith(_REPLACEMENT):  # perhaps the first bytes of a character
            self._retry_at = len(new) + 1 + len(new) // 8
            return ""
        certain = text[len(self._known) :]
        alone = self._decode(new)
        # The new ids suffice as the next context if they decode to whole characters; otherwise the context grows.
        if alone and not alone.endswith(_REPLACEMENT):
            self._context, self._known = new, alone
        else:
            self._context, self._known = self._context + new, text
        self._new, self._retry_at = [], 0
        return certain

    def end(self, ids: Iterable[int] = ()) -> str:
        """Return the rest of the text, with `ids` as the last ones."""
        self._new.extend(ids)
        if not self._new:
            return ""
        text = self._decode(self._context + self._new if self._context else self._new)
        return text[len(self._known) :]


def _decoder_steps(tokenizer: tokenizers.Tokenizer) -> list[dict[str, Any]]:
    """Return the steps of the tokenizer's decoder, each with its `type` and options."""
    if tokenizer.decoder is None:
        return []
    description = json.loads(tokenizer.decoder.__getstate__())
    steps: list[dict[str, Any]] = description["decoders"] if description["type"] == "Sequence" else [description]
    return steps


def _is_growing(steps: Sequence[dict[str, Any]]) -> bool:
    """Return whether more ids only append to the text of fewer ids, incomplete characters aside."""
    kinds = [step["type"] for step in steps]
    if kinds in (["ByteLevel"], ["Metaspace"]):
        return True
    if not kinds or not set(kinds) <= {"Replace", "ByteFallback", "Fuse", "Strip"}:
        return False
    fused = kinds.index("Fuse") if "Fuse" in kinds else len(kinds)
    # After Fuse a step sees the whole text. It may change the text's beginning, but neither its middle nor its end.
    return all(step["type"] == "Strip" and step["stop"] == 0 for step in steps[fused + 1 :])


@attrs.frozen(kw_only=True)
class TokenizerFiles:
    """Text settings of a model directory: tokenizer, chat template, special tokens, stop token ids."""

    tokenizer: TextTokenizer
    template: str
    template_path: Path
    special_tokens: dict[str, str]
    """Special tokens by the names that templates use, `bos_token` for example."""
    stop_token_ids: tuple[int, ...]


TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.jinja",
    "generation_config.json",
    "config.json",
)
"""Files of a model directory that `read_tokenizer_files` reads; only the first must be there."""


def read_tokenizer_files(directory: Path) -> TokenizerFiles:
    """Read a Hugging Face model directory; `ConfigError` names the file that is missing or broken."""
    path = directory / "tokenizer.json"
    if not path.is_file():
        raise ConfigError(
            f"{directory}: tokenizer.json not found; agentrl needs a fast tokenizer in the model directory "
            "(save it there with tokenizer.save_pretrained)"
        )
    try:
        tokenizer = TextTokenizer(tokenizers.Tokenizer.from_file(str(path)))
    except Exception as error:  # tokenizers raises bare Exception
        raise ConfigError(f"{path}: the tokenizers package cannot read this file: {error}") from error
    settings = _read_json(directory / "tokenizer_config.json")
    special = _special_tokens(settings, _read_json(directory / "special_tokens_map.json"))
    template, template_path = _read_template(directory, settings)
    return TokenizerFiles(
        tokenizer=tokenizer,
        template=template,
        template_path=template_path,
        special_tokens=special,
        stop_token_ids=_stop_token_ids(directory, tokenizer, special),
    )


def _read_json(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ConfigError(f"{path}: not valid JSON: {error}") from error
    if not isinstance(value, dict):
        raise ConfigError(f"{path}: expected a JSON object, found {type(value).__name__}")
    return value


def _special_tokens(*sources: dict[str, Any]) -> dict[str, str]:
    found: dict[str, str] = {}
    for source in sources:
        for name in _SPECIAL_NAMES:
            value = source.get(name)
            text = value.get("content") if isinstance(value, dict) else value
            if isinstance(text, str):
                found.setdefault(name, text)
    return found


def _read_template(directory: Path, settings: dict[str, Any]) -> tuple[str, Path]:
    path = directory / "chat_template.jinja"
    if path.is_file():
        return path.read_text(encoding="utf-8"), path
    path = directory / "tokenizer_config.json"
    template = settings.get("chat_template")
    # A directory may hold several named templates. Agents use tools, so that variant comes first.
    if isinstance(template, list):
        by_name = {entry["name"]: entry["template"] for entry in template}
        template = by_name.get("tool_use", by_name.get("default"))
    if not isinstance(template, str):
        raise ConfigError(
            f"{directory}: no chat template in chat_template.jinja or tokenizer_config.json; "
            "use a chat (instruct) model, or save a template as chat_template.jinja"
        )
    return template, path


def _stop_token_ids(directory: Path, tokenizer: TextTokenizer, special: dict[str, str]) -> tuple[int, ...]:
    """Return the ids that end generation: of generation_config.json or else config.json, and the eos token's id."""
    named = _read_json(directory / "generation_config.json").get("eos_token_id")
    if named is None:
        named = _read_json(directory / "config.json").get("eos_token_id")
    ids = [named] if isinstance(named, int) else list(named or ())
    eos = tokenizer.id_of(special["eos_token"]) if "eos_token" in special else None
    return tuple(dict.fromkeys([*ids, *([] if eos is None else [eos])]))
