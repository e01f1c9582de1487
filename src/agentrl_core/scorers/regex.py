"""The scorer `regex`: 1 if a pattern matches; the search has a time limit.

It uses the package `regex` because Python's `re` has neither a time limit nor a way to release the GIL.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Literal

import attrs
import regex  # type: ignore[import-untyped]  # it ships no types
from attrs import field, validators

from agentrl_core.api.scored_text import Of, references, scored_text

if TYPE_CHECKING:
    from agentrl_core.api.scoring import ScoreRequest
    from agentrl_core.types import Task

_FLAGS = {"i": regex.IGNORECASE, "m": regex.MULTILINE, "s": regex.DOTALL, "x": regex.VERBOSE}


def _compiled(_instance: object, attribute: attrs.Attribute[Any], value: str) -> None:
    try:
        regex.compile(value)
    except regex.error as error:
        raise ValueError(f"'{attribute.name}' is not a valid pattern: {error}: {value!r}") from error


def _known_flags(_instance: object, attribute: attrs.Attribute[Any], value: str) -> None:
    if set(value) - set(_FLAGS):
        raise ValueError(f"'{attribute.name}': expected letters from {''.join(_FLAGS)}, found {value!r}")


@attrs.frozen(kw_only=True)
class Regex:
    """Scorer that gives 1 if `pattern` matches, else 0; without `pattern` the task's `answer` is the pattern.

    An `answer` that is a list holds several patterns, of which one must match. `match` is `full` (the whole text,
    without the white space around it) or `search` (anywhere in the text). A search that takes longer than `timeout_s`
    gives no score.
    """

    pattern: str | None = field(default=None, validator=validators.optional(_compiled))
    match: Literal["search", "full"] = "search"
    flags: str = field(default="", validator=_known_flags)
    """Letters: i ignores case, m lets ^ and $ match at lines, s lets . match line ends, x allows comments."""
    of: Of = "answer"
    timeout_s: float = field(default=1.0, validator=validators.gt(0))
    cpu_bound: ClassVar[bool] = False

    @property
    def needs_reference(self) -> bool:
        """Whether the task's answer is needed as the pattern."""
        return self.pattern is None

    def check_task(self, task: Task) -> None:
        """Raise ValueError if the task's answer is needed as the pattern and is not a valid one."""
        if self.pattern is None and task.answer is not None:
            for item in _patterns_of(task):
                _compiled(self, attrs.fields_dict(Regex)["pattern"], item)

    def __call__(self, request: ScoreRequest) -> float:
        """Return 1 or 0."""
        text = scored_text(request, self.of)
        patterns = references(request) if self.pattern is None else (self.pattern,)
        return float(any(self._matches(pattern, text) for pattern in patterns))

    def _matches(self, pattern: str, text: str) -> bool:
        flags = regex.VERSION0
        for letter in self.flags:
            flags |= _FLAGS[letter]
        compiled = regex.compile(pattern, flags)
        try:
            # `concurrent` releases the GIL, so that other threads, such as the agents', can run during the search.
            if self.match == "full":
                return compiled.fullmatch(text.strip(), concurrent=True, timeout=self.timeout_s) is not None
            return compiled.search(text, concurrent=True, timeout=self.timeout_s) is not None
        except TimeoutError as error:
            raise TimeoutError(
                f"the pattern {pattern!r} took more than timeout_s = {self.timeout_s:g} s on {len(text)} characters"
            ) from error


def _patterns_of(task: Task) -> tuple[str, ...]:
    given = task.data.get("answer")
    return tuple(map(str, given)) if isinstance(given, list) else (task.answer or "",)
