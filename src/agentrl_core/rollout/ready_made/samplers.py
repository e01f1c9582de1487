"""Base class for custom samplers as in AgentCPM's AgentRL (another project), and the workflow that runs them.

A sampler is created once per episode. It asks the policy, and then scores its own episode.
"""

from __future__ import annotations

import copy
import inspect
import json
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Self, cast

import attrs

from agentrl_core.api.completions import ask
from agentrl_core.errors import ConfigError

if TYPE_CHECKING:
    from types import TracebackType

    from agentrl_core.types import Message

_OPTIONAL = ("content", "tool_calls", "reasoning_content", "usage", "finish_reason")
"""Fields that OpenAI's response objects always have, as None if the reply leaves them out."""


class View(dict[str, Any]):
    """JSON object whose fields are also attributes, as in the OpenAI SDK's objects: `reply.choices[0].message`."""

    def __getattr__(self, name: str) -> Any:
        """Return a field; None for an optional field of a reply that is missing."""
        if name in self:
            return self[name]
        if name in _OPTIONAL:
            return None
        known = ", ".join(map(str, self))
        raise AttributeError(f"there is no field '{name}'; the fields are: {known or 'none'}")

    def __setattr__(self, name: str, value: Any) -> None:
        """Set a field."""
        self[name] = value

    def model_dump(self, *, exclude_none: bool = False, **_: Any) -> dict[str, Any]:
        """Return plain JSON, as pydantic's objects do."""
        plain: dict[str, Any] = json.loads(json.dumps(self))
        return {key: value for key, value in plain.items() if value is not None or not exclude_none}


def view(value: Any) -> Any:
    """Return JSON with its objects as `View`s."""
    if isinstance(value, Mapping):
        return View({key: view(item) for key, item in value.items()})
    if isinstance(value, list | tuple):
        return [view(item) for item in value]
    return value


@attrs.define(kw_only=True, eq=False)
class SamplerRecord:
    """The state of one sampler's episode; a sampler puts its own notes into `meta_infos`."""

    id: str
    task: View
    """The task's row; a copy, so that changes stay in this episode."""
    is_eval: bool
    traj: list[View] = attrs.field(factory=list)
    """Calls so far, `{request, response}` each."""
    meta_infos: dict[str, Any] = attrs.field(factory=dict)
    score: float | None = None
    """Return value of `evaluate_record`."""


class AsyncSampler:
    """Base class of a sampler: `run` asks the policy, `evaluate_record` scores the episode.

        class MathSampler(AsyncSampler):
            async def run(self, task):
                messages = [{"role": "user", "content": f"{self.config.hint}: {task.query}"}]
                reply = await self.create_chat_completions(messages)
                self.record.meta_infos["answer"] = reply.choices[0].message.content

            async def evaluate_record(self, record):
                return float(record.meta_infos["answer"].strip() == record.task.answer)

    The config names it like any workflow; options beside `use` become `self.config`. Each episode gets a new instance,
    made like the first one, so `run` may keep state on `self`. Load heavy things in the module, not in the instance. If
    an instance is passed in place of its class, each episode gets a copy (`copy.copy`).
    """

    task: View
    """The row of the episode, with its fields as attributes."""
    record: SamplerRecord
    split: str
    """`train`, or `valid` while held-out tasks are evaluated."""
    config: Any = View()

    _calls: Callable[[Sequence[Message], Mapping[str, Any]], Any]

    def __init__(self, **config: Any) -> None:
        self.config = view(config)

    async def run(self, task: View) -> None:  # noqa: ARG002 (for subclasses)
        """Sample the episode; a subclass may leave out `task`, which is also `self.task`."""
        raise TypeError(f"{type(self).__qualname__} has no run(self, task)")

    async def evaluate_record(self, record: SamplerRecord) -> float | None:
        """Return the score of the episode; by default None, so that the task's scorer decides."""

    async def create_chat_completions(
        self, messages: Sequence[Message], *, tools: Sequence[Mapping[str, Any]] | None = None, **fields: Any
    ) -> View:
        """Ask the policy; `fields` are those of OpenAI's chat completions.

        The reply reads like one of OpenAI's SDK: `.choices[0].message.content`, `.tool_calls`, `.model_dump()`. Raises
        `RequestError` if the gateway refuses the call. AgentCPM's options `priority`, `timeout` and `finish_status` are
        accepted and ignored.
        """
        request = {key: value for key, value in fields.items() if key not in ("priority", "timeout", "finish_status")}
        if "repeat_penalty" in request:
            request["repetition_penalty"] = request.pop("repeat_penalty")
        reply = view(await self._calls(list(messages), {"tools": tools or None, **request}))
        self.record.traj.append(view({"request": {"messages": list(messages)}, "response": reply}))
        return cast("View", reply)

    async def __aenter__(self) -> Self:
        """Begin the episode; a subclass opens its resources here."""
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """End the episode."""


class SamplerWorkflow:
    """Runs a sampler as a workflow."""

    def __init__(self, sampler: AsyncSampler, factory: Callable[[], object] | None) -> None:
        self._make = factory or (lambda: copy.copy(sampler))
        parameters = inspect.signature(sampler.run).parameters
        self._takes_task = bool(parameters)
        # A class that does not override `run`, or that overrides it with other parameters, is refused before the run
        # starts.
        if type(sampler).run is AsyncSampler.run or len(parameters) > 1:
            found = inspect.signature(sampler.run)
            raise ConfigError(
                f"workflow: {type(sampler).__qualname__}.run{found}: expected `async def run(self, task)`, which asks "
                "by self.create_chat_completions"
            )

    async def run(
        self, data: dict[str, Any], *, base_url: str, api_key: str, http_client: Any, record_id: str, is_eval: bool
    ) -> float | None:
        """Run one episode with a new sampler, and return its score."""
        sampler = cast("AsyncSampler", self._make())
        sampler.task = view(data)
        sampler.record = SamplerRecord(id=record_id, task=sampler.task, is_eval=is_eval)
        sampler.split = "valid" if is_eval else "train"

        async def call(messages: Sequence[Message], fields: Mapping[str, Any]) -> dict[str, Any]:
            return await ask(http_client, base_url, api_key, messages, fields)

        setattr(sampler, "_calls", call)  # noqa: B010 (a function on an object is no method)
        async with sampler:
            run = cast("Callable[..., Any]", sampler.run)
            await (run(sampler.task) if self._takes_task else run())
            sampler.record.score = await sampler.evaluate_record(sampler.record)
        return sampler.record.score
