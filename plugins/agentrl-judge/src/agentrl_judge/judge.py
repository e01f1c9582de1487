"""The scorer `judge`: options, the check before a run, and one score with its transcript.

`panel.py` decides which model is called and when, `model.py` makes a call, `prompt.py` and `verdict.py` write the
prompt and read the reply.
"""

from __future__ import annotations

import math
import secrets
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from agentrl_core.api.options import Node, Place, Problem, did_you_mean, from_python
from agentrl_core.api.scoring import Score
from agentrl_core.errors import ConfigError, EpisodeError
from agentrl_judge.agent_config import DEFAULT_PATHS, AgentConfig, read_agent_config
from agentrl_judge.breaker import Breaker
from agentrl_judge.model import CallError, JudgeModel
from agentrl_judge.panel import NoVerdictError, Panel, Patience
from agentrl_judge.prompt import GRADES, TEMPLATE, check_template, compose, placeholders
from agentrl_judge.settings import read_models
from agentrl_judge.verdict import Scale  # noqa: TC001  # options are checked against the annotations

if TYPE_CHECKING:
    from agentrl_core.api.scoring import ScoreRequest
    from agentrl_core.types import Task

_CHECK_S = 10.0
"""Time limit for a server to list its models, at the start of a run."""
_LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1", "0.0.0.0"})  # noqa: S104  (compared, not bound)


class Judge:
    """Scorer that asks language models whether an answer is right: 1 or 0, or with `scale: graded` a number between.

    The models are tried in order. If none of them gives a verdict, the episode has no score: an outage is never a
    reward of 0. `models` is a list of `{base_url, model, api_key_env, …}`, or `config` is the path of an
    `agent_config.yml`. With neither, that file is looked for in the folder of the run's config. Options given here take
    precedence over the file.
    """

    def __init__(
        self,
        *,
        models: Sequence[Mapping[str, Any]] | None = None,
        config: str | None = None,
        template: str | None = None,
        scale: Scale = "binary",
        temperature: float | None = 0.0,
        timeout_s: float = 120.0,
        call_timeout_s: float | None = None,
        max_retries: int | None = None,
        retry_delay_s: float | None = None,
        backoff_factor: float | None = None,
        max_concurrency: int = 16,
        breaker_failures: int = 5,
        breaker_reset_s: float = 30.0,
        max_chars: int = 20_000,
        check: bool = True,
        config_dir: Path | None = None,
    ) -> None:
        given = _given(models, config, config_dir or Path())
        self._template = _template(template or given.template, scale)
        self._scale: Scale = scale
        self._asks_servers = check
        self._max_chars = _at_least(max_chars, 200, "max_chars")
        self.needs_reference = "labeled_answer" in placeholders(self._template)
        """False if the template does not show the reference answer."""
        call_timeout_s = _first(call_timeout_s, given.call_timeout_s, 60.0)
        self.panel = Panel(
            models=[
                JudgeModel(
                    settings,
                    scale=scale,
                    temperature=temperature,
                    timeout_s=_above_zero(call_timeout_s, "call_timeout_s"),
                    max_concurrency=_at_least(max_concurrency, 1, "max_concurrency"),
                    breaker=Breaker(
                        failures=_at_least(breaker_failures, 1, "breaker_failures"),
                        reset_s=_above_zero(breaker_reset_s, "breaker_reset_s"),
                        clock=time.monotonic,
                    ),
                )
                for settings in given.models
            ],
            patience=Patience(
                timeout_s=_above_zero(timeout_s, "timeout_s"),
                max_retries=_at_least(_first(max_retries, given.max_retries, 2), 0, "max_retries"),
                retry_delay_s=_at_least(_first(retry_delay_s, given.retry_delay_s, 1.0), 0, "retry_delay_s"),
                backoff_factor=_at_least(_first(backoff_factor, given.backoff_factor, 2.0), 1, "backoff_factor"),
            ),
        )
        """Models of the judge, with the rules by which they are asked."""

    def check_task(self, task: Task) -> None:
        """Raise ValueError if the judge needs the task's reference answer and it is empty."""
        if self.needs_reference and task.answer is not None and not task.answer.strip():
            raise ValueError("the task's `answer` is empty")

    async def __call__(self, request: ScoreRequest) -> Score:
        """Score one finished episode. Raises `EpisodeError` for no score, with the reason and the transcript."""
        texts = self._texts(request)
        if not request.answer.strip():
            return Score(0.0, details={"judge": {"asked": False, "why": "the answer is empty"}})
        asked: list[list[dict[str, str]]] = []
        calls: list[dict[str, Any]] = []

        # A new random boundary for every call, so that no answer can guess it.
        def composed() -> list[dict[str, str]]:
            boundary = secrets.token_hex(8)
            asked.append(
                compose(self._template, texts, scale=self._scale, boundary=boundary, max_chars=self._max_chars)
            )
            return asked[-1]

        try:
            opinion = await self.panel.ask(composed, calls)
        except NoVerdictError as error:
            raise EpisodeError(error.reason, str(error), details=_transcript(asked, calls)) from error
        verdict = {"value": opinion.value, "reasoning": opinion.reasoning, "model": calls[-1]["model"]}
        return Score(opinion.value, details=_transcript(asked, calls, verdict))

    async def check(self, *, gateway_url: str | None = None) -> list[str]:
        """Ask each server for its models before a run starts; return warnings about problems that do not stop a run.

        Raises `ConfigError` if a server does not know its model, if no model can be asked at all, or if a server is
        the run's own gateway.
        """
        for model in self.panel.models:
            if gateway_url is not None and _same_place(model.settings.base_url, gateway_url):
                raise ConfigError(
                    f"judge: {model.settings.base_url} is this run's own gateway, so the policy would judge itself; "
                    "fix: set base_url to another server"
                )
        notes, lost = [], []
        for model in self.panel.models if self._asks_servers else ():
            try:
                known = await model.known_models(_CHECK_S)
            except CallError as error:
                lost.append(f"judge: {model.settings.label} cannot be asked: {error}")
                continue
            if known is None:
                notes.append(
                    f"judge: {model.settings.base_url} does not list its models (GET /models), so it is not known "
                    f"whether it has {model.settings.model}"
                )
            # Google's server lists its models with the prefix `models/`.
            elif not {model.settings.model, f"models/{model.settings.model}"} & set(known):
                hint = did_you_mean(model.settings.model, known) or f" (it has {', '.join(sorted(known)[:8])})"
                raise ConfigError(f"judge: {model.settings.base_url} has no model {model.settings.model}{hint}")
        if lost and len(lost) == len(self.panel.models):
            raise ConfigError("\n".join(lost))
        return [*notes, *lost]

    def _texts(self, request: ScoreRequest) -> dict[str, str]:
        reference = request.reference or ""
        if self.needs_reference and not reference.strip():
            raise EpisodeError(
                "no_score", f"the judge needs the task's `answer`, and task '{request.task.id}' has none"
            )
        return {"question": _question(request), "labeled_answer": reference, "pred_answer": request.answer}


def _transcript(
    asked: Sequence[list[dict[str, str]]], calls: Sequence[Mapping[str, Any]], verdict: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Return the transcript to store: the last prompt (others differ only in the boundary), all calls, total cost."""
    cost = sum(call.get("cost_usd", 0.0) for call in calls)
    told: dict[str, Any] = {"verdict": verdict, "cost_usd": cost, "calls": list(calls)}
    return {"judge": told | ({"messages": asked[-1]} if asked else {})}


def _question(request: ScoreRequest) -> str:
    """Return the task's query, else the text of its user messages."""
    query = request.task.data.get("query")
    if isinstance(query, str) and query.strip():
        return query
    messages = request.task.data.get("messages") or request.messages
    return "\n\n".join(_said(message) for message in messages if message.get("role") == "user")


def _said(message: Mapping[str, Any]) -> str:
    content = message.get("content")
    if isinstance(content, str):
        return content
    parts = [part for part in content or () if isinstance(part, Mapping)]
    return "\n".join(str(part.get("text") or f"({part.get('type', 'part')})") for part in parts)


def _given(models: Sequence[Mapping[str, Any]] | None, config: str | None, folder: Path) -> AgentConfig:
    if models is not None and config is not None:
        raise ValueError("'config': set models or config, not both")
    if models is not None:
        problems: list[Problem] = []
        nodes = [from_python(item, Place(f"model {number}", number)) for number, item in enumerate(models, start=1)]
        found = read_models(Node(nodes, Place("models")), problems, keys_in_file=False)
        if problems:
            raise ValueError("'models': " + "; ".join(map(str, problems)))
        return AgentConfig(models=found)
    if config is not None:
        return read_agent_config(folder / Path(config).expanduser())
    for path in (folder / name for name in DEFAULT_PATHS):
        if path.is_file():
            return read_agent_config(path)
    raise ValueError(
        f"'models': no model is configured, and {folder} has no {' or '.join(DEFAULT_PATHS)}; fix: set "
        "`scorers: {judge: {use: judge, models: [{base_url: …, model: …, api_key_env: …}]}}`"
    )


def _template(template: str | None, scale: Scale) -> str:
    if template is None:
        return TEMPLATE + (GRADES if scale == "graded" else "")
    try:
        check_template(template)
    except ValueError as error:
        raise ValueError(f"'template': {error}") from error
    return template


def _same_place(base_url: str, gateway_url: str) -> bool:
    """Return whether two addresses lead to the same port of the same host; all loopback names are one host."""
    one, other = urlsplit(base_url), urlsplit(gateway_url)
    hosts = {one.hostname, other.hostname}
    return one.port == other.port and (len(hosts) == 1 or hosts <= _LOOPBACK)


def _first(*values: Any) -> Any:
    return next(value for value in values if value is not None)


def _above_zero(value: float, name: str) -> float:
    if not 0 < value < math.inf:
        raise ValueError(f"'{name}' must be above 0 and finite, found {value:g}")
    return value


def _at_least(value: Any, least: float, name: str) -> Any:
    if not least <= value < math.inf:
        raise ValueError(f"'{name}' must be at least {least:g} and finite, found {value:g}")
    return value
