"""The scorer `choice`, for multiple-choice questions: 1 if the answer picks the right option.

Replies are long and come from a model, so the patterns here use possessive quantifiers (`*+`): with plain ones, a
reply of many blanks would take quadratic time or worse.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import attrs
from attrs import field

from agentrl_core.api.scored_text import Of, references, scored_text
from agentrl_core.scorers.f1 import normalized

if TYPE_CHECKING:
    from agentrl_core.api.scoring import ScoreRequest
    from agentrl_core.types import Task

_LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
_LONGEST = 20_000
"""Number of characters that are read, from the end of an answer, where its conclusion is."""
_DRESS = re.compile(r"\\(?:boxed|fbox|text\w*|math\w*)\b|[*_`$\\]")
"""Emphasis and LaTeX around a label."""
_STATED = re.compile(
    r"\b(?:answer|choice|option|choose|select|pick)\b(?:\s+(?:is|would\s+be|should\s+be|must\s+be|option|choice))*",
    re.IGNORECASE,
)


def _letters(_instance: object, attribute: attrs.Attribute[Any], value: str) -> None:
    if not value or not value.isalnum() or len(set(value.upper())) != len(value):
        raise ValueError(f"'{attribute.name}': expected different letters or digits, 'ABCD' for one, found {value!r}")


@attrs.frozen(kw_only=True)
class Choice:
    r"""Scorer that gives 1 if the answer picks the option that the reference names, else 0.

    The options are the task's `choices`: a list (labelled A, B, C, …) or a mapping from label to text. Without
    `choices` the labels are `labels`. The reference is a label or the text of an option. The first rule that applies
    decides:

    1. The answer is a label: `B`, `(b)`, `**B.**`, `$\boxed{B}$`.
    2. The answer states a label; the last statement counts: `the answer is B`, `Answer: (B)`, `I choose option B`.
    3. The answer begins with a label and a sign after it: `B) Paris`, `B: Paris`.
    4. The answer is the text of one option, or states it: `the answer is Paris`.
    5. The answer mentions only one label, as a capital letter (`It must be (B).`), or else the text of only one option.

    If a rule finds two different labels (`A or B`), the answer picks none and is wrong.
    """

    labels: str = field(default="ABCDEFGHIJ", validator=_letters)
    of: Of = "answer"
    needs_reference: ClassVar[bool] = True

    def check_task(self, task: Task) -> None:
        """Raise ValueError if the task's choices are malformed or its reference names none of them."""
        options = self._options(task.data)
        given = task.data.get("answer", task.answer)
        for reference in given if isinstance(given, list) else [task.answer]:
            if reference is not None and _named(str(reference), options) is None:
                labels = ", ".join(options)
                raise ValueError(f"answer: expected one of {labels}, or the text of one, found {reference!r}")

    def __call__(self, request: ScoreRequest) -> float:
        """Return 1 or 0."""
        options = self._options(request.task.data)
        expected = {_named(reference, options) for reference in references(request)}
        if None in expected:
            raise ValueError(f"task '{request.task.id}': its answer {request.reference!r} is not one of its choices")
        return float(picked(scored_text(request, self.of), options) in expected)

    def _options(self, data: Mapping[str, Any]) -> dict[str, str]:
        """Return a map from label, in capitals, to the normalized text of the option, empty if it has none."""
        choices = data.get("choices")
        if choices is None:
            return dict.fromkeys(self.labels.upper(), "")
        if isinstance(choices, Mapping) and choices:
            return {str(label).upper(): normalized(str(text)) for label, text in choices.items()}
        if isinstance(choices, Sequence) and not isinstance(choices, str) and 0 < len(choices) <= len(_LETTERS):
            return {label: normalized(str(text)) for label, text in zip(_LETTERS, choices, strict=False)}
        raise ValueError(f"choices: expected 1 to {len(_LETTERS)} options, found {choices!r:.80}")


def picked(answer: str, options: Mapping[str, str]) -> str | None:
    """Return the label that an answer picks by the rules of `Choice`; None if it picks none or several."""
    text = _DRESS.sub(" ", answer[-_LONGEST:]).strip()
    for rule in (_bare, _stated, _leading, _by_text, _alone):
        found = set(rule(text, options))
        if found:
            return found.pop() if len(found) == 1 else None
    return None


def _bare(text: str, options: Mapping[str, str]) -> Iterator[str]:
    """Apply rule 1: the answer is a label."""
    if match := re.fullmatch(rf"[(\[{{\s]*({_labels(options)})[)\]}}\s.:]*", text, re.IGNORECASE):
        yield match[1].upper()


def _leading(text: str, options: Mapping[str, str]) -> Iterator[str]:
    """Apply rule 3: the answer begins with a label before a bracket, a colon or a full stop."""
    label = _labels(options)
    if match := re.match(rf"[(\[{{\s]*+({label})\s*+(?:[)\]}}:]|\.\s)", text):
        yield match[1].upper()
        yield from _listed_after(text, match.end(), label)


def _stated(text: str, options: Mapping[str, str]) -> Iterator[str]:
    """Apply rule 2: take the label after the last words that announce one."""
    label = _labels(options)
    # An announcement without a label (`the answer is hard to find`) is passed over for the one before it.
    for statement in reversed(list(_STATED.finditer(text))):
        rest = re.compile(rf"\s*+(?:[:=]\s*+)?[(\[{{\s]*+({label})\b(?![\u2019'\w])", re.IGNORECASE).match(
            text, statement.end()
        )
        # A small letter counts only if it is not the article `a`, as in `the answer is a city`.
        if rest and (rest[1].isupper() or rest[1].isdigit() or not _is_word(text, rest)):
            yield rest[1].upper()
            yield from _listed_after(text, rest.end(), label)
            return


def _by_text(text: str, options: Mapping[str, str]) -> Iterator[str]:
    """Apply rule 4: the text of an option is the answer, or follows the last announcement."""
    statements = list(_STATED.finditer(text))
    told = {normalized(text)} | ({normalized(text[statements[-1].end() :])} if statements else set())
    yield from (label for label, option in options.items() if option and option in told)


def _alone(text: str, options: Mapping[str, str]) -> Iterator[str]:
    """Apply rule 5: take the only label that is mentioned, or else the only option."""
    label = _labels(options)
    mentions = [
        match
        for match in re.finditer(rf"(?<![\w'\u2019-])({label})(?![\w'\u2019-])", text)
        if match[1] not in "AI" or not _is_word(text, match)
    ]
    if mentions:
        yield from (match[1].upper() for match in mentions)
        return
    words = f" {normalized(text)} "
    inside = {label: option for label, option in options.items() if option and f" {option} " in words}
    # `New York City` also mentions the option `New York`; the longer option is meant.
    longer = list(inside.values())
    yield from (
        label
        for label, option in inside.items()
        if not any(option != other and f" {option} " in f" {other} " for other in longer)
    )


def _listed_after(text: str, start: int, label: str) -> Iterator[str]:
    """Yield the labels that follow in a list, as in `A or B`; with several labels none is picked."""
    following = re.compile(rf"[)\]}}\s]*+(?:,|/|&|\bor\b|\band\b)[(\[{{\s]*+({label})\b(?![\u2019'\w])")
    while match := following.match(text, start):
        yield match[1].upper()
        start = match.end()


def _is_word(text: str, match: re.Match[str]) -> bool:
    """Return whether a letter is the article `a` or the pronoun `I`: a lower-case word follows, but not `or`, `and`."""
    return re.match(r"\s+(?!(?:or|and)\b)[a-z]", text[match.end(1) : match.end(1) + 40]) is not None


def _labels(options: Mapping[str, str]) -> str:
    """Return a pattern of the labels, the longest first, so that `10` is not read as `1`."""
    return "|".join(re.escape(label) for label in sorted(options, key=len, reverse=True))


def _named(reference: str, options: Mapping[str, str]) -> str | None:
    """Return the label of the option that a reference names by label or text; None if it names none."""
    bare = _DRESS.sub("", reference).strip().strip("()[]{}.: ").upper()
    if bare in options:
        return bare
    return next((label for label, option in options.items() if option and option == normalized(reference)), None)
