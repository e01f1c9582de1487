"""The scorer `f1`: overlap of the words of answer and reference, computed as in SQuAD."""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from typing import TYPE_CHECKING, ClassVar, Literal

import attrs

from agentrl_core.api.scored_text import Of, references, scored_text

if TYPE_CHECKING:
    from agentrl_core.api.scoring import ScoreRequest

_ARTICLES = re.compile(r"\b(?:a|an|the)\b")


@attrs.frozen(kw_only=True)
class F1:
    """Harmonic mean of precision and recall of the answer's words; the best value over all references.

    Case, punctuation and the articles a, an, the do not count. With `by: characters` every character is a word, for
    languages that are written without spaces. If one side has no words, the value is 1 if the other has none either,
    else 0.
    """

    by: Literal["words", "characters"] = "words"
    of: Of = "answer"
    needs_reference: ClassVar[bool] = True

    def __call__(self, request: ScoreRequest) -> float:
        """Return a value from 0 to 1."""
        found = self._tokens(scored_text(request, self.of))
        return max(overlap(found, self._tokens(reference)) for reference in references(request))

    def _tokens(self, text: str) -> Counter[str]:
        words = normalized(text).split()
        return Counter("".join(words) if self.by == "characters" else words)


def normalized(text: str) -> str:
    """Return the text's words in lower case with single spaces, without punctuation and English articles."""
    kept = "".join(" " if char.isspace() else char for char in text.lower() if not _is_punctuation(char))
    return " ".join(_ARTICLES.sub(" ", kept).split())


def overlap(found: Counter[str], expected: Counter[str]) -> float:
    """Return the F1 value of two bags of words; 1 if both are empty."""
    if not found or not expected:
        return float(found == expected)
    return 2 * (found & expected).total() / (found.total() + expected.total())


def _is_punctuation(char: str) -> bool:
    """Return whether SQuAD drops the character: one of the ASCII signs, or punctuation by its Unicode category."""
    return not char.isalnum() and (char in _ASCII_SIGNS or unicodedata.category(char).startswith("P"))


_ASCII_SIGNS = frozenset(r"""!"#$%&'()*+,-./:;<=>?@[\]^_`{|}~""")
