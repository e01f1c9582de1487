"""The scorer `math`: score 1 if an answer means the same as the reference, as mathematics."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Literal

import attrs
from attrs import field, validators

from agentrl_core.api.extract import extract_answer
from agentrl_core.api.processes import CallTimeoutError, run_in_process
from agentrl_core.api.scored_text import references
from agentrl_core.errors import EpisodeError
from agentrl_math.comparing import same_value

if TYPE_CHECKING:
    from agentrl_core import ScoreRequest, Task

_LONGEST = 2_000
"""Characters of an answer; a longer one is wrong."""


@attrs.frozen(kw_only=True)
class Math:
    """Score 1 if the answer equals the task's `answer` (or one of them, if there are several) as mathematics, else 0.

    Reads numbers, fractions, percentages, expressions, equations, sets, intervals and matrices, in LaTeX or plain text.
    Other texts are compared as text, so a malformed answer is wrong. The comparison runs in a process of its own. If it
    takes longer than `timeout_s` or more memory than `memory_mb`, the process is killed, and the episode has no score,
    or 0 with `on_timeout: zero`.
    """

    precision: int = field(default=6, validator=validators.ge(0))
    """Decimal places to which numbers are rounded."""
    strict: bool = True
    """If true, the names of variables count: `x = 1` and `y = 1` differ."""
    timeout_s: float = field(default=10.0, validator=validators.gt(0))
    """Time limit of one comparison."""
    memory_mb: int = field(default=1024, validator=validators.gt(0))
    """Memory limit of one comparison."""
    on_timeout: Literal["no_score", "zero"] = "no_score"
    """Outcome of a comparison that reached a limit."""
    needs_reference: ClassVar[bool] = True

    def check_task(self, task: Task) -> None:
        """Raise ValueError if the task's answer is empty."""
        if task.answer is not None and not task.answer.strip():
            raise ValueError("answer: expected mathematics, found an empty text")

    async def __call__(self, request: ScoreRequest) -> float:
        """Return 1 or 0. Raises `EpisodeError` for no score, if the comparison reached a limit."""
        expected, answer = references(request), request.answer.strip()
        # A whole reply is a derivation; its result stands in the last \boxed{…} or at the end.
        if request.answer_from == "reply":
            answer = extract_answer(answer, "boxed").strip() or answer[-_LONGEST:]
        # Equal texts need no worker process.
        if any(answer == reference.strip() for reference in expected):
            return 1.0
        if not answer or len(answer) > _LONGEST:
            return 0.0
        outcome = await self._compared(answer, expected)
        return float(outcome)

    async def _compared(self, answer: str, expected: tuple[str, ...]) -> bool:
        options: tuple[Any, ...] = (self.precision, self.strict)
        try:
            same: bool = await run_in_process(
                same_value, answer, expected, *options, timeout_s=self.timeout_s, memory_mb=self.memory_mb
            )
        except (CallTimeoutError, MemoryError) as error:
            if self.on_timeout == "zero":
                return False
            raise EpisodeError(
                "no_score", f"scorer 'math': comparing {answer!r:.80} with {expected[0]!r:.80}: {error or 'no memory'}"
            ) from error
        return same
