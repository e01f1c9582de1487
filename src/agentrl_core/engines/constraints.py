"""Constrain outputs to grammars with llguidance: which tokens may come next in each row.

llguidance walks the vocabulary along a parser and gives one bit per token. This module decides about the rest: which
tokens end an output, which grammars are refused, and which compiled ones are kept. Shapes: C constrained rows, V
vocabulary.
"""

from __future__ import annotations

import json
import threading
from collections import OrderedDict
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import attrs
import numpy as np

from agentrl_core.errors import UnservableError

if TYPE_CHECKING:
    from llguidance import LLExecutor, LLMatcher, LLTokenizer
    from numpy.typing import NDArray
    from tokenizers import Tokenizer

    from agentrl_core.types import Grammar

KEPT_GRAMMARS = 128
"""Most compiled grammars to keep; the least recently used is dropped. A run's agents share a few; each takes up to some
megabytes."""

WHITESPACE = r"[ \n\r\t]{1,24}"
"""Whitespace between the tokens of JSON. Bounded, because a policy that begins to sample whitespace might otherwise
never stop."""


@attrs.frozen(kw_only=True)
class Vocabulary:
    """Vocabulary of a model in llguidance's form."""

    size: int
    """Number of tokens that the model can sample."""
    tokens: LLTokenizer
    """Those tokens, `end`, and perhaps more that the tokenizer knows."""
    end: int
    """Index of the bit that marks a complete output; it lies beyond the model's own tokens."""
    executor: LLExecutor


class Constraint:
    """State of one generation's grammar: the position in it that the output has reached."""

    def __init__(self, vocabulary: Vocabulary, matcher: LLMatcher, stop_ids: Sequence[int]) -> None:
        self.vocabulary = vocabulary
        self.matcher = matcher
        self._stop_ids = [token for token in stop_ids if 0 <= token < vocabulary.size]
        self._named_stop_ids = [token for token in self._stop_ids if vocabulary.tokens.is_special_token(token)]
        """Stop tokens that stand for no text. If a grammar contains such a token, it means the token itself."""

    @property
    def exhausted(self) -> bool:
        """Whether the output is complete and nothing but a stop token may follow."""
        return self.matcher.is_stopped()

    def advance(self, token: int) -> None:
        """Move past a sampled token that is not a stop token; `broken` tells whether the output may continue."""
        self.matcher.consume_token(token)

    def settle_stops(self, allowed_V: NDArray[np.uint8], *, complete: bool) -> None:
        """Allow the stop tokens if the output is complete, or if the grammar demands exactly that token."""
        demanded = [token for token in self._named_stop_ids if allowed_V[token]]
        allowed_V[self._stop_ids] = complete
        allowed_V[demanded] = True

    def broken(self, allowed_V: NDArray[np.uint8]) -> str:
        """Return why the output cannot continue with these allowed tokens; an empty string if it can."""
        if self.matcher.is_error():
            return self.matcher.get_error().strip()
        return "" if allowed_V.any() else "the output is not complete, and nothing but stop tokens could follow"


def allowed_tokens(constraints: Sequence[Constraint]) -> tuple[NDArray[np.bool_], list[str]]:
    """Return the tokens that may come next, [C, V], and per row why its constraint is broken (empty if it is not).

    A broken constraint allows any token, so that its row can still be computed with the others.
    """
    from llguidance.numpy import fill_next_token_bitmask_par

    vocabulary = constraints[0].vocabulary
    words_CW = np.zeros((len(constraints), -(-vocabulary.tokens.vocab_size // 32)), dtype=np.int32)
    # One call for all rows: each call releases the interpreter lock, which is slow to get back beside a busy event
    # loop.
    fill_next_token_bitmask_par(vocabulary.executor, [(one.matcher, c) for c, one in enumerate(constraints)], words_CW)
    allowed_CV = np.unpackbits(words_CW.view(np.uint8), axis=1, bitorder="little")
    faults = []
    for one, allowed_V in zip(constraints, allowed_CV, strict=True):
        one.settle_stops(allowed_V, complete=bool(allowed_V[vocabulary.end]))
        faults.append(one.broken(allowed_V[: vocabulary.size]))
        if faults[-1]:
            allowed_V[:] = 1
    return allowed_CV[:, : vocabulary.size].view(np.bool_), faults


class Grammars:
    """Compiles grammars for one vocabulary and caches them. Callable from several threads.

    `vocab_size` is the number of tokens that the model can sample; the tokenizer may know fewer. If `tokenizer` is
    None, every grammar is refused.
    """

    def __init__(self, tokenizer: Tokenizer | None, *, vocab_size: int) -> None:
        self._tokenizer = tokenizer
        self._vocab_size = vocab_size
        self._vocabulary: Vocabulary | None = None
        self._compiling = threading.Lock()
        """Held during compilation: if a group brings one grammar, the first request compiles it and the others find
        it."""
        self._lock = threading.Lock()
        """Guards the cache; held briefly."""
        self._compiled: OrderedDict[Grammar, LLMatcher] = OrderedDict()

    def kept(self, grammar: Grammar, stop_ids: Sequence[int]) -> Constraint | None:
        """Return `grammar` at its beginning if it is compiled already."""
        with self._lock:
            matcher = self._compiled.get(grammar)
            if matcher is None or self._vocabulary is None:
                return None
            self._compiled.move_to_end(grammar)
        return Constraint(self._vocabulary, matcher.deep_copy(), stop_ids)

    def constraint(self, grammar: Grammar, stop_ids: Sequence[int]) -> Constraint:
        """Compile `grammar` if necessary and return it at its beginning. Blocks.

        Takes milliseconds; for the first grammar and a large vocabulary, seconds. Raises `UnservableError` if the
        grammar cannot be compiled.
        """
        with self._compiling:
            # Look again under the lock: another thread may have compiled the grammar in the meantime.
            while (constraint := self.kept(grammar, stop_ids)) is None:
                self._vocabulary = self._vocabulary or _read_vocabulary(self._tokenizer, self._vocab_size)
                matcher = _compile(grammar, self._vocabulary.tokens)
                with self._lock:
                    self._compiled[grammar] = matcher
                    if len(self._compiled) > KEPT_GRAMMARS:
                        self._compiled.popitem(last=False)
            return constraint


class _Bytes:
    """Tokenizer wrapper from which llguidance builds a vocabulary: each token's text, and a way to tokenize text.

    llguidance tokenizes the text that a grammar leaves no choice about, and must not get special tokens for it: the
    grammar would not accept them. So the wrapper tokenizes with a copy of the model's tokenizer that knows no special
    tokens.
    """

    is_tokenizer_wrapper = True
    bos_token_id = None

    def __init__(self, tokenizer: Tokenizer, size: int) -> None:
        from llguidance import LLTokenizer
        from tokenizers import Tokenizer

        description = json.loads(tokenizer.to_str())
        # Used only to look tokens up: it knows how each kind of tokenizer writes bytes. Slices would speed up
        # matching, which it is not used for.
        self._known = LLTokenizer(json.dumps(description), slices=[])
        num_known = self._known.vocab_size
        self.special_token_ids = [token for token in range(num_known) if self._known.is_special_token(token)]
        self.tokens = [self._known.decode_bytes([token]) for token in range(num_known)]
        # The end of an output is a token of its own, outside of the model's vocabulary: requests differ in their stop
        # tokens, and those may be ordinary text.
        self.eos_token_id = max(size, num_known)
        self.tokens += [b""] * (self.eos_token_id + 1 - num_known)
        special = set(self.special_token_ids)
        description["added_tokens"] = [added for added in description["added_tokens"] if added["id"] not in special]
        description["post_processor"] = None
        self._plain = Tokenizer.from_str(json.dumps(description))
        self._plain.no_padding()
        self._plain.no_truncation()

    def __call__(self, text: str) -> list[int]:
        ids = self._plain.encode(text, add_special_tokens=False).ids
        # A tokenizer may normalize text, but forced text must come out byte by byte.
        exact = b"".join(self.tokens[token] for token in ids) == text.encode()
        return ids if exact else self._known.greedy_tokenize(text)


def _read_vocabulary(tokenizer: Tokenizer | None, size: int) -> Vocabulary:
    from llguidance import LLExecutor, LLTokenizer

    if tokenizer is None:
        raise UnservableError("a grammar needs the model's tokenizer, but the model directory has no tokenizer.json")
    try:
        source: Any = _Bytes(tokenizer, size)
        tokens = LLTokenizer(source, eos_token=source.eos_token_id)
    except ValueError as error:
        raise UnservableError(f"grammars cannot be enforced with this model's tokenizer: {error}") from error
    return Vocabulary(size=size, tokens=tokens, end=source.eos_token_id, executor=LLExecutor(1))


def _compile(grammar: Grammar, vocabulary: LLTokenizer) -> LLMatcher:
    from llguidance import LLMatcher, LLParserLimits

    if grammar.kind == "regex":
        source = LLMatcher.grammar_from_regex(grammar.value)
    elif grammar.kind == "lark":
        source = LLMatcher.grammar_from_lark(grammar.value)
    else:
        schema = '{"type": "object"}' if grammar.kind == "json_object" else grammar.value
        try:
            source = LLMatcher.grammar_from_json_schema(schema, defaults={"whitespace_pattern": WHITESPACE})
        except ValueError as error:
            raise _refusal(grammar, str(error)) from error
    # Verbose errors would contain the whole output and the parser's state.
    matcher = LLMatcher(vocabulary, source, log_level=0, limits=LLParserLimits(verbose_errors=False))
    if matcher.is_error():
        raise _refusal(grammar, matcher.get_error())
    return matcher


def _refusal(grammar: Grammar, reason: str) -> UnservableError:
    return UnservableError(f"the {grammar.kind} grammar cannot be enforced: {reason.strip()}")
