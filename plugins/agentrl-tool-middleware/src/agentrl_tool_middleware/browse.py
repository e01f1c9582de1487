"""Middleware `browse`: another model reads long pages and tells the policy what bears on its purpose."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import attrs

from agentrl_core.errors import EnvironmentLostError
from agentrl_tool_middleware.browse_settings import browse_options, read_browse_agent
from agentrl_tool_middleware.lengths import TextLength
from agentrl_tool_middleware.pages import Part, joined, prompt_for, split_pages
from agentrl_tool_middleware.summary_models import NoSummaryError, SummaryModels

if TYPE_CHECKING:
    from agentrl_core.api.tools import CallNext, ToolRequest, ToolResult, ToolSpec

PURPOSE = "Summarize the main content of this page."
"""Purpose of a call that names none, for tools without one of their own in `default_purpose`."""
_WHOLE = ("full content", "complete content", "raw content", "entire content")
"""Words in a purpose that ask for the page as it is."""
_DESCRIPTION = (
    "What you want to find out; you get a summary for this purpose. Ask for the full content to get the page."
)


class Browse:
    """Replaces long results of the tools in `browse_tools` by summaries for the purpose that the policy gave.

    The settings are those of the section `browse_agent` of an `agent_config.yml`, read from the path `agent_config` and
    given here under the same names; these take precedence. A model may also be `{upstream: NAME}`, one of the run's
    `gateway.upstreams`. Results of at most `min_prompt_length` tokens are shown as they are; a page of more than
    `max_prompt_length` is summarised in up to `max_parts` parts. If no model answers, `on_failure` decides: `reject`
    ends the episode as one whose environment is lost, `raw` shows the text, cut at `max_prompt_length`.
    """

    def __init__(
        self,
        *,
        agent_config: str | None = None,
        models: Sequence[Mapping[str, Any]] | None = None,
        status: bool | None = None,
        browse_tools: Sequence[str] | None = None,
        default_purpose: Mapping[str, str] | None = None,
        max_prompt_length: int | None = None,
        min_prompt_length: int | None = None,
        tokenizer_path: str | None = None,
        max_retries: int | None = None,
        retry_delay: float | None = None,
        timeout: float | None = None,
        enable_logging: bool | None = None,
        extra_body: Mapping[str, Any] | None = None,
        max_parts: int = 4,
        on_failure: Literal["reject", "raw"] = "reject",
        config_dir: Path | None = None,
    ) -> None:
        given = {
            "models": models,
            "status": status,
            "browse_tools": browse_tools,
            "default_purpose": default_purpose,
            "max_prompt_length": max_prompt_length,
            "min_prompt_length": min_prompt_length,
            "tokenizer_path": tokenizer_path,
            "max_retries": max_retries,
            "retry_delay": retry_delay,
            "timeout": timeout,
            "enable_logging": enable_logging,
            "extra_body": extra_body,
        }
        folder = config_dir or Path()
        base = None if agent_config is None else read_browse_agent(folder / Path(agent_config).expanduser())
        if max_parts < 1:
            raise ValueError(f"'max_parts': expected at least 1, found {max_parts}")
        self.settings = browse_options({key: value for key, value in given.items() if value is not None}, base)
        """Settings of the file and of the options together."""
        self._max_parts, self._on_failure = max_parts, on_failure
        self._length = TextLength.of(self.settings.tokenizer_path, config_dir)
        self._models = SummaryModels(self.settings)

    def tools(self, specs: Sequence[ToolSpec]) -> Sequence[ToolSpec]:
        """Return the tools; those whose results are summarised have an argument `purpose`."""
        if not self.settings.status:
            return specs
        return [_with_purpose(spec) if spec.name in self.settings.browse_tools else spec for spec in specs]

    async def call(self, request: ToolRequest, call_next: CallNext) -> ToolResult:
        """Return the tool's result, or summaries of its pages."""
        settings = self.settings
        if not settings.status or request.name not in settings.browse_tools:
            return await call_next(request)
        purpose, arguments = self._purpose(request)
        result = await call_next(attrs.evolve(request, arguments=arguments))
        if result.is_error or any(word in purpose.lower() for word in _WHOLE):
            return result
        text = result.text
        if self._length.tokens(text) <= settings.min_prompt_length:
            return result
        parts = split_pages(text, self._length, max_tokens=settings.max_prompt_length, max_parts=self._max_parts)
        try:
            shown = await self._summaries(parts, purpose)
        except NoSummaryError as error:
            if self._on_failure == "reject":
                raise EnvironmentLostError(f"browse: no model summarised the page: {error}", server="browse") from error
            shown = text[: self._length.chars_within(text, settings.max_prompt_length)]
        others = [part for part in result.content if part.get("type") != "text"]
        return attrs.evolve(result, content=({"type": "text", "text": shown}, *others))

    def _purpose(self, request: ToolRequest) -> tuple[str, Mapping[str, Any]]:
        """Return the purpose of a call, and its arguments in the form that the tool knows."""
        arguments = dict(request.arguments)
        known = request.tool.parameters.get("properties") if request.tool is not None else None
        known = known if isinstance(known, Mapping) else {}
        own_goal = arguments.get("goal") if "goal" in known else arguments.pop("goal", None)
        given = arguments.get("purpose") or own_goal
        default = self.settings.default_purpose.get(request.name)
        purpose = given if isinstance(given, str) and given.strip() else default or PURPOSE
        if "purpose" in known:
            arguments["purpose"] = purpose
        else:
            arguments.pop("purpose", None)
        return purpose, arguments

    async def _summaries(self, parts: Sequence[Part], purpose: str) -> str:
        try:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(self._models.ask(prompt_for(part, purpose))) for part in parts]
        except ExceptionGroup as errors:
            raise errors.exceptions[0] from None
        return joined([part.label for part in parts], [task.result() for task in tasks])


def _with_purpose(spec: ToolSpec) -> ToolSpec:
    known = spec.parameters.get("properties")
    properties = dict(known) if isinstance(known, Mapping) else {}
    if "purpose" in properties:
        return spec
    properties["purpose"] = {"type": "string", "description": _DESCRIPTION}
    return attrs.evolve(spec, parameters={**spec.parameters, "properties": properties})
