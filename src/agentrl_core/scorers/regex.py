"""The scorer `regex`: whether a pattern is found, with a limit on how long the search may take."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Literal

import attrs
import regex  # type: ignore[import-untyped]  # it ships no types
from attrs import field, validators

from agentrl_core.api.reading import Of, judged_text, references

if TYPE_CHECKING:
    from agentrl_core.api.scoring import ScoreRequest
    from agentrl_core.types import Task

_FLAGS = {"i": regex.IGNORECASE, "m": regex.MULTILINE, "s": regex.DOTALL, "x": regex.VERBOSE}


def _compiled(_instance: object, attribute: attrs.Attribute[Any], value: str) -> None:
    try:
        regex.compile(value)
    except regex.error as error:
        raise ValueError(f"'{attribute.name}' is no pattern: {error}: {value!r}") from error


def _known_flags(_instance: object, attribute: attrs.Attribute[Any], value: str) -> None:
    if set(value) - set(_FLAGS):
        raise ValueError(f"'{attribute.name}': expected letters out of {''.join(_FLAGS)}, found {value!r}")


@attrs.frozen(kw_only=True)
class Regex:
    """Give 1 where `pattern` matches, else 0; without a pattern the task's `answer` is one, or each of several.

    `match` is `full` (all of the text, but for white space around it) or `search` (anywhere in it). A search that
    takes longer than `timeout_s` is no score.
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
        """Whether the task's answer is the pattern."""
        return self.pattern is None

    def check_task(self, task: Task) -> None:
        """Raise ValueError where the task's answer is to be a pattern and is none."""
        if self.pattern is None and task.answer is not None:
            for item in _patterns_of(task):
                _compiled(self, attrs.fields_dict(Regex)["pattern"], item)

    def __call__(self, request: ScoreRequest) -> float:
        """Give 1 or 0."""
        text = judged_text(request, self.of)
        patterns = references(request) if self.pattern is None else (self.pattern,)
        return float(any(self._matches(pattern, text) for pattern in patterns))

    def _matches(self, pattern: str, text: str) -> bool:
        flags = regex.VERSION0
        for letter in self.flags:
            flags |= _FLAGS[letter]
        compiled = regex.compile(pattern, flags)
        try:
            # concurrent: other threads, the agents' among them, go on meanwhile.
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
