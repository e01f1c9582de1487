"""The scenarios of Open Responses' compliance suite, by their names there, against a gateway with a scripted engine.

`python -m tests.conformance.responses` prints a table and fails where a result is not the expected one. The suite
itself is in no package registry. So its requests are written again here, and the fields that the specification
(https://www.openresponses.org, version of 2026-04-24) requires are in tables of our own.
"""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import attrs
import httpx2
import jsonschema
from tests.matrix.policy import write_model

from agentrl_core.api.stores import RunRow
from agentrl_core.chat import Chat
from agentrl_core.config.sampling_sections import GatewayConfig, SamplingConfig
from agentrl_core.engines.scripted import ScriptedEngine
from agentrl_core.gateway import Gateway
from agentrl_core.stores.sqlite import SQLiteStore
from agentrl_core.types import Record

TEMPLATE = """{%- for tool in tools or [] %}{{ tool | tojson }}
{% endfor %}{%- for m in messages %}<|im_start|>{{ m.role }}
{% if m.content is string %}{{ m.content }}{% else %}{% for part in m.content %}
{%- if part.type == 'image' %}<image>{% else %}{{ part.text }}{% endif %}{% endfor %}{% endif %}
{%- for call in m.tool_calls or [] %}<tool_call>
{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments }}}
</tool_call>{% endfor %}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""
"""Chat template that has tools and images."""

CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"location": "San Francisco, CA"}}\n</tool_call>'
WEATHER = {
    "type": "function",
    "name": "get_weather",
    "description": "Get the weather of a place",
    "parameters": {"type": "object", "properties": {"location": {"type": "string"}}, "required": ["location"]},
}
IMAGE = (
    "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mP8z8BQDwAEhQGAhKmMIQAAAABJRU5ErkJg"
    "gg=="
)


def _object(**required: Any) -> dict[str, Any]:
    return {"type": "object", "properties": required, "required": list(required)}


def _or_null(schema: Mapping[str, Any]) -> dict[str, Any]:
    return {"anyOf": [schema, {"type": "null"}]}


def _by_type(kinds: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Return the schema of an object whose `type` decides which further fields it has."""
    cases = [
        {"if": {"properties": {"type": {"const": kind}}}, "then": _object(**fields)} for kind, fields in kinds.items()
    ]
    return {"type": "object", "required": ["type"], "properties": {"type": {"enum": list(kinds)}}, "allOf": cases}


_TEXT, _FLAG, _NUMBER, _WHOLE = ({"type": kind} for kind in ("string", "boolean", "number", "integer"))
_LIST, _ANY_OBJECT = {"type": "array"}, {"type": "object"}
_MAYBE_TEXT, _MAYBE_WHOLE = _or_null(_TEXT), _or_null(_WHOLE)
_ITEM_STATUS = {"enum": ["in_progress", "completed", "incomplete"]}
_PART = _by_type(
    {
        "output_text": {"text": _TEXT, "annotations": _LIST, "logprobs": _LIST},
        "reasoning_text": {"text": _TEXT},
        "refusal": {"refusal": _TEXT},
    }
)
_ITEM = _by_type(
    {
        "message": {
            "id": _TEXT,
            "status": _ITEM_STATUS,
            "role": {"enum": ["assistant"]},
            "content": {"type": "array", "items": _PART},
        },
        "function_call": {
            "id": _TEXT,
            "call_id": _TEXT,
            "name": _TEXT,
            "arguments": _TEXT,
            "status": _ITEM_STATUS,
        },
        "reasoning": {"id": _TEXT, "summary": _LIST},
    }
)
_USAGE = _object(
    input_tokens=_WHOLE,
    output_tokens=_WHOLE,
    total_tokens=_WHOLE,
    input_tokens_details=_object(cached_tokens=_WHOLE),
    output_tokens_details=_object(reasoning_tokens=_WHOLE),
)
_TOOL = _by_type(
    {
        "function": {
            "name": _TEXT,
            "description": _MAYBE_TEXT,
            "parameters": _or_null(_ANY_OBJECT),
            "strict": _or_null(_FLAG),
        }
    }
)
RESPONSE = _object(
    id=_TEXT,
    object={"const": "response"},
    created_at=_WHOLE,
    completed_at=_MAYBE_WHOLE,
    status=_TEXT,
    incomplete_details=_or_null(_object(reason=_TEXT)),
    model=_TEXT,
    previous_response_id=_MAYBE_TEXT,
    instructions=_MAYBE_TEXT,
    output={"type": "array", "items": _ITEM},
    error=_or_null(_object(code=_TEXT, message=_TEXT)),
    tools={"type": "array", "items": _TOOL},
    tool_choice={"type": ["string", "object"]},
    truncation={"enum": ["auto", "disabled"]},
    parallel_tool_calls=_FLAG,
    text=_object(format=_object(type=_TEXT)),
    top_p=_NUMBER,
    presence_penalty=_NUMBER,
    frequency_penalty=_NUMBER,
    top_logprobs=_WHOLE,
    temperature=_NUMBER,
    reasoning=_or_null(_object(effort=_MAYBE_TEXT, summary=_MAYBE_TEXT)),
    user=_MAYBE_TEXT,
    usage=_or_null(_USAGE),
    max_output_tokens=_MAYBE_WHOLE,
    max_tool_calls=_MAYBE_WHOLE,
    store=_FLAG,
    background=_FLAG,
    service_tier=_TEXT,
    metadata=_ANY_OBJECT,
    safety_identifier=_MAYBE_TEXT,
    prompt_cache_key=_MAYBE_TEXT,
)
_AT_ITEM = {"output_index": _WHOLE, "item": _ITEM}
_AT_PART = {"item_id": _TEXT, "output_index": _WHOLE, "content_index": _WHOLE}
_EVENTS: Mapping[str, Mapping[str, Any]] = {
    **{
        f"response.{status}": {"response": RESPONSE} for status in ("created", "in_progress", "completed", "incomplete")
    },
    "response.output_item.added": _AT_ITEM,
    "response.output_item.done": _AT_ITEM,
    "response.content_part.added": {**_AT_PART, "part": _PART},
    "response.content_part.done": {**_AT_PART, "part": _PART},
    "response.output_text.delta": {**_AT_PART, "delta": _TEXT, "logprobs": _LIST},
    "response.output_text.done": {**_AT_PART, "text": _TEXT, "logprobs": _LIST},
    "response.function_call_arguments.delta": {"item_id": _TEXT, "output_index": _WHOLE, "delta": _TEXT},
    "response.function_call_arguments.done": {"item_id": _TEXT, "output_index": _WHOLE, "arguments": _TEXT},
}
EVENT = _by_type({kind: {"sequence_number": _WHOLE, **fields} for kind, fields in _EVENTS.items()})
COMPACTION = _object(id=_TEXT, object={"const": "response.compaction"}, output=_LIST, created_at=_WHOLE, usage=_USAGE)

Send = Callable[[str, Mapping[str, Any]], httpx2.Response]
"""Function that posts a body to a path."""


def _said(role: str, content: Any, **more: Any) -> dict[str, Any]:
    return {"type": "message", "role": role, "content": content, **more}


@attrs.frozen(kw_only=True)
class Scenario:
    """One request and what its reply must be."""

    body: Mapping[str, Any]
    reply: str = "Hello there friend."
    """Text that the policy samples."""
    output: str = "message"
    """Type of an item that the response must have."""
    path: str = "/responses"
    schema: Mapping[str, Any] = attrs.field(factory=lambda: RESPONSE)
    status: int = 200
    expected_failure: str = ""
    """Reason why the gateway fails here; empty if it must pass."""

    def problems(self, send: Send) -> list[str]:
        """Play the scenario and return what is wrong with the reply."""
        response = send(self.path, self.body)
        if response.status_code != self.status:
            return [f"status {response.status_code} instead of {self.status}: {response.text[:200]}"]
        if self.status != httpx2.codes.OK:
            return []
        if not self.body.get("stream"):
            return self._wrong(response.json())
        events = [
            json.loads(line.removeprefix("data: "))
            for line in response.text.splitlines()
            if line.startswith("data: ") and line != "data: [DONE]"
        ]
        numbers = [event.get("sequence_number") for event in events]
        found = [] if numbers == list(range(len(events))) else [f"sequence numbers {numbers}"]
        for event in events:
            found += [f"{event.get('type')}: {problem}" for problem in _mismatches(event, EVENT)]
        return found + (self._wrong(events[-1]["response"]) if events else ["no events"])

    def _wrong(self, body: Any) -> list[str]:
        found = _mismatches(body, self.schema)
        if found or self.schema is not RESPONSE:
            return found
        if body["status"] != "completed":
            found.append(f"status is {body['status']}")
        if self.output not in [item["type"] for item in body["output"]]:
            found.append(f"no item of type {self.output}")
        return found


def _mismatches(value: Any, schema: Mapping[str, Any]) -> list[str]:
    errors = jsonschema.Draft202012Validator(schema).iter_errors(value)
    return [f"{error.json_path}: {error.message[:200]}" for error in errors]


_NO_COMPACTION = "POST /responses/compact: a policy has no compaction of its own; `context` policies do that"

SCENARIOS: Mapping[str, Scenario] = {
    "basic-response": Scenario(body={"input": [_said("user", "Say hello in exactly 3 words.")]}),
    "assistant-phase": Scenario(
        body={
            "input": [
                _said("assistant", "I should answer with the number.", phase="commentary"),
                _said("assistant", "The number is four.", phase="final_answer"),
                _said("user", "Repeat the number."),
            ]
        }
    ),
    # The original compares a fixture of its own with its schema; here, a reply of the gateway with ours.
    "response-output-phase-schema": Scenario(
        body={"input": [_said("user", "Say a number.")], "text": {"verbosity": "low"}}
    ),
    "streaming-response": Scenario(body={"input": [_said("user", "Count from 1 to 5.")], "stream": True}),
    "system-prompt": Scenario(body={"input": [_said("system", "You are a pirate."), _said("user", "Say hello.")]}),
    "tool-calling": Scenario(
        body={"input": [_said("user", "What is the weather in San Francisco?")], "tools": [WEATHER]},
        reply=CALL,
        output="function_call",
    ),
    "tool-calling-streaming": Scenario(
        body={"input": [_said("user", "What is the weather in Paris?")], "tools": [WEATHER], "stream": True},
        reply=CALL,
        output="function_call",
    ),
    "image-input": Scenario(
        body={
            "input": [
                _said(
                    "user",
                    [{"type": "input_text", "text": "What do you see?"}, {"type": "input_image", "image_url": IMAGE}],
                )
            ]
        }
    ),
    "multi-turn": Scenario(
        body={
            "input": [
                _said("user", "My name is Alice."),
                _said("assistant", "Hello Alice! How can I help?"),
                _said("user", "What is my name?"),
            ]
        }
    ),
    "compact-response": Scenario(
        path="/responses/compact",
        body={"model": "default", "input": [_said("user", "Hello."), _said("assistant", "Hi.")]},
        schema=COMPACTION,
        expected_failure=_NO_COMPACTION,
    ),
    "compact-missing-model": Scenario(
        path="/responses/compact", body={"input": "Hello."}, status=400, expected_failure=_NO_COMPACTION
    ),
}


class _Engine(ScriptedEngine):
    """Says `text`, whatever it is asked."""

    def __init__(self, chat: Chat, model_dir: Path) -> None:
        self.text = ""
        end = chat.stop_token_ids[:1]
        super().__init__(
            replies=lambda _ids, _number: [*chat.encode(self.text), *end], model_dir=model_dir, context_length=10_000
        )


@contextmanager
def scenarios_player() -> Iterator[Callable[[Scenario], list[str]]]:
    """Start a gateway, and yield a function that returns the problems of a scenario there."""
    with tempfile.TemporaryDirectory() as folder:
        directory = write_model(Path(folder))
        (directory / "chat_template.jinja").write_text(TEMPLATE, encoding="utf-8")
        chat = Chat.from_directory(directory)
        engine, store = _Engine(chat, directory), SQLiteStore(path=Path(folder) / "run.db")
        engine.start()
        gateway = Gateway(
            engine=engine,
            chat=chat,
            store=store,
            run_id="run",
            sampling=SamplingConfig(max_tokens=500),
            config=GatewayConfig(),
            seed=1,
        )
        gateway.start()

        async def opened() -> Any:
            await store.create_run(RunRow(id="run", created_at=0.0, status="running", config={}, components={}))
            (group,) = await store.add_evaluation("run", "train", ["t"], version=0, claimable=False)
            record = Record(id="r", run_id="run", task_id="t", group_id=group, sample_index=0)
            await store.add_record(record)
            return await gateway.open_session(record, seed_key=(1,))

        session = asyncio.run(opened())
        headers = {"authorization": f"Bearer {session.api_key}"}
        try:
            with httpx2.Client(base_url=f"{gateway.url}/v1", headers=headers, timeout=30) as client:

                def play(scenario: Scenario) -> list[str]:
                    engine.text = scenario.reply
                    return scenario.problems(lambda path, body: client.post(path, json=dict(body)))

                yield play
        finally:
            gateway.close()
            engine.close()
            asyncio.run(store.close())


def main() -> int:
    """Print a line for each scenario; return 1 if a result is not the expected one."""
    surprises = 0
    with scenarios_player() as play:
        for name, scenario in SCENARIOS.items():
            problems = play(scenario)
            as_expected = bool(problems) == bool(scenario.expected_failure)
            surprises += not as_expected
            result = "fail" if problems else "pass"
            note = f", as expected: {scenario.expected_failure}" if problems and as_expected else ""
            found = [] if as_expected else problems or ["passes now"]
            sys.stdout.write("\n    ".join([f"{name:<30} {result}{note}", *found]) + "\n")
    return surprises > 0


if __name__ == "__main__":
    sys.exit(main())
