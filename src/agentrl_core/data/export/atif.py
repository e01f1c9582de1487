"""The export format `atif`: Harbor's Agent Trajectory Interchange Format, one trajectory per branch.

Specification: harbor-framework/harbor, rfcs/0001-trajectory-format.md. A step is a message of the system or the user,
or a turn of the agent together with the results of its tools. The branches of a record share its id as `session_id`.
A step that an earlier branch contains, and an assistant's message that the policy did not write, have
`is_copied_context`, so that readers train every sampled token once.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from agentrl_core.api.kept_tokens import ids_of
from agentrl_core.data.export.branches import branches_of
from agentrl_core.data.export.chat import tool_call
from agentrl_core.data.tool_calls import by_asking_call, tool_call_facts

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from agentrl_core.api.stores import RunRow
    from agentrl_core.data.export.branches import Branch
    from agentrl_core.types import Episode, Interaction, Record, Task, ToolCall

SCHEMA = "ATIF-v1.7"
"""The lowest version that has every field written here; readers of later versions accept it."""

_IMAGES = {"image/jpeg", "image/png", "image/gif", "image/webp"}
_MEDIA_TYPES = {"jpg": "image/jpeg", "jpeg": "image/jpeg", "png": "image/png", "gif": "image/gif", "webp": "image/webp"}


def trajectories(episode: Episode, task: Task | None, run: RunRow) -> Iterator[dict[str, Any]]:
    """Yield a trajectory for each branch of an episode, in the order of `branches_of`."""
    tool_calls = by_asking_call(episode)
    for branch in branches_of(episode):
        steps: list[dict[str, Any]] = []
        recorded: dict[str, ToolCall] = {}
        for item in branch.calls:
            copied = item.id in branch.shared
            for message in item.messages:
                _add_message(steps, message, recorded, copied=copied)
            # Only those of the turn before: models may give an id again.
            recorded = {call.call_id: call for call in tool_calls.get(item.id, ()) if call.call_id}
            steps.append(_turn(item, episode, copied=copied))
        _add_unanswered(steps, recorded)
        for number, step in enumerate(steps, start=1):
            step["step_id"] = number
        yield {
            "schema_version": SCHEMA,
            "session_id": episode.record.id,
            "trajectory_id": f"{episode.record.id}.{branch.index}",
            "agent": _agent(branch, run),
            "steps": steps,
            "final_metrics": _final_metrics(branch, episode, num_steps=len(steps)),
            "extra": {
                "run": run.id,
                "branch": branch.index,
                "task": None if task is None else _of_task(task),
                "record": _about(episode.record),
            },
        }


def _agent(branch: Branch, run: RunRow) -> dict[str, Any]:
    name = run.components.get("workflow", "agentrl").partition(" (")[0]  # without the path of its file
    origin, _, _ = name.partition(" ")  # `dist==version module:attr` if a package brought the agent
    version = origin.partition("==")[2]
    tools = branch.calls[-1].tools
    return {
        "name": name,
        "version": version or "unknown",
        "model_name": branch.calls[-1].upstream or branch.calls[-1].model,
        **({"tool_definitions": [dict(tool) for tool in tools]} if tools else {}),
    }


def _of_task(task: Task) -> dict[str, Any]:
    scoring = {"answer": task.answer, "scorer": task.scorer, "answer_schema": task.answer_schema}
    return {"id": task.id, "data": dict(task.data), **scoring}


def _about(record: Record) -> dict[str, Any]:
    return {
        "outcome": record.outcome.value,
        "reason": record.reason,
        "detail": record.detail,
        "reward": record.reward,
        "rewards": dict(record.rewards),
        "score": record.score,
        "score_parts": dict(record.score_parts),
        "score_details": dict(record.score_details),
        **({"marks": list(record.marks)} if record.marks else {}),
        "group": record.group_id,
        "sample_index": record.sample_index,
        "attempt": record.attempt,
        "task_set": record.task_set,
        "is_eval": record.is_eval,
    }


def _add_message(
    steps: list[dict[str, Any]], message: Mapping[str, Any], recorded: Mapping[str, ToolCall], *, copied: bool
) -> None:
    """Append the step of a message in a request; a tool's result joins the turn that called the tool."""
    role, content = message["role"], _content(message.get("content"))
    if role in {"tool", "function"}:
        _observe(steps, message, content, recorded)
        return
    if role == "assistant":
        steps.append({"source": "agent", "message": content, **_spoken(message), "is_copied_context": True})
        return
    source = "user" if role == "user" else "system"
    steps.append({"source": source, "message": content, **({"is_copied_context": True} if copied else {})})


def _observe(
    steps: list[dict[str, Any]],
    message: Mapping[str, Any],
    content: str | list[dict[str, Any]],
    recorded: Mapping[str, ToolCall],
) -> None:
    last = steps[-1] if steps else {}
    if last.get("source") != "agent" and "observation" not in last:
        # An agent that shortened its history: the turn that called the tool is not in it any more.
        steps.append({"source": "system", "message": ""})
    turn = steps[-1]
    answered = message.get("tool_call_id")
    known = answered in {call["tool_call_id"] for call in turn.get("tool_calls", ())}
    extra = {} if known or not answered else {"tool_call_id": answered}
    if known and (call := recorded.get(str(answered))) is not None:
        extra |= tool_call_facts(call)
    result = {
        "content": content,
        **({"source_call_id": answered} if known else {}),
        **({"extra": extra} if extra else {}),
    }
    turn.setdefault("observation", {"results": []})["results"].append(result)


def _add_unanswered(steps: list[dict[str, Any]], recorded: Mapping[str, ToolCall]) -> None:
    """Append the results of the last turn's tool calls, after which the policy was not asked again."""
    turn = steps[-1] if steps else {}
    for name in (call["tool_call_id"] for call in turn.get("tool_calls", ())):
        if name in recorded:
            content = _content([dict(part) for part in recorded[name].shown])
            result = {"content": content, "source_call_id": name, "extra": tool_call_facts(recorded[name])}
            turn.setdefault("observation", {"results": []})["results"].append(result)


def _turn(item: Interaction, episode: Episode, *, copied: bool) -> dict[str, Any]:
    """Return the step of one LLM call; its metrics are left out of a copy."""
    step = {
        "source": "agent",
        "message": _content(item.output.get("content")),
        "model_name": item.upstream or item.model,
        **_spoken(item.output),
        **({"timestamp": datetime.fromtimestamp(item.finished_at, UTC).isoformat()} if item.finished_at else {}),
        "extra": {
            "interaction": item.id,
            "finish_reason": item.finish_reason.value,
            "trained": item.trainable,
            **({"reward": episode.record.rewards[item.id]} if item.id in episode.record.rewards else {}),
            **({"upstream": item.upstream} if item.upstream else {}),
            **({"digest": item.digest} if item.digest else {}),
        },
    }
    if copied:
        return {**step, "is_copied_context": True}
    return {**step, "llm_call_count": 1, "metrics": _metrics(item, episode)}


def _metrics(item: Interaction, episode: Episode) -> dict[str, Any]:
    if item.upstream:  # other parties' models return no token ids
        return {"cached_tokens": item.cached_tokens}
    prompt = _prompt_ids(item, episode)
    masks = {"kept_token_ids": [list(ids_of(mask)) for mask in item.kept]} if item.kept else {}
    return {
        "prompt_tokens": len(prompt),
        "completion_tokens": len(item.output_ids),
        "cached_tokens": item.cached_tokens,
        "prompt_token_ids": list(prompt),
        "completion_token_ids": list(item.output_ids),
        "logprobs": list(item.logprobs),
        "extra": {
            "policy_versions": [list(span) for span in item.versions],
            "temperature": item.sampling.temperature,
            **masks,
        },
    }


def _prompt_ids(item: Interaction, episode: Episode) -> tuple[int, ...]:
    whole = episode.full_ids(item)
    return whole[: len(whole) - len(item.output_ids)]


def _final_metrics(branch: Branch, episode: Episode, *, num_steps: int) -> dict[str, Any]:
    """Return the sums over the branch's own calls, without those that an earlier branch contains."""
    own = [item for item in branch.calls if item.id not in branch.shared]
    return {
        "total_prompt_tokens": sum(len(_prompt_ids(item, episode)) for item in own),
        "total_completion_tokens": sum(len(item.output_ids) for item in own),
        "total_cached_tokens": sum(item.cached_tokens for item in own),
        "total_steps": num_steps,
        "extra": {"reward": episode.record.reward},
    }


def _spoken(message: Mapping[str, Any]) -> dict[str, Any]:
    """Return the thoughts and tool calls of an assistant's message."""
    calls = [_tool_call(tool_call(call, place)) for place, call in enumerate(message.get("tool_calls") or ())]
    thoughts = message.get("reasoning_content")
    return {**({"reasoning_content": thoughts} if thoughts else {}), **({"tool_calls": calls} if calls else {})}


def _tool_call(call: Mapping[str, Any]) -> dict[str, Any]:
    written = call["function"]["arguments"]
    try:
        arguments = json.loads(written)
    except ValueError:
        arguments = None
    known = {"tool_call_id": call["id"], "function_name": call["function"]["name"]}
    if isinstance(arguments, dict):
        return {**known, "arguments": arguments}
    # The format takes objects only; what the policy wrote is kept beside.
    return {**known, "arguments": {}, "extra": {"arguments": written}}


def _content(content: Any) -> str | list[dict[str, Any]]:
    if not isinstance(content, list):
        return "" if content is None else str(content)
    return [_part(part) for part in content]


def _part(part: Any) -> dict[str, Any]:
    """Return a content part; one that the format lacks becomes a text with its JSON."""
    if isinstance(part, dict) and part.get("type") == "image_url":
        url = (part.get("image_url") or {}).get("url", "")
        if (media_type := _media_type(url)) is not None:
            return {"type": "image", "source": {"media_type": media_type, "path": url}}
    text = part.get("text") if isinstance(part, dict) else None
    return {"type": "text", "text": text if isinstance(text, str) else json.dumps(part, ensure_ascii=False)}


def _media_type(url: str) -> str | None:
    if url.startswith("data:"):
        named = url[len("data:") :].partition(";")[0]
        return named if named in _IMAGES else None
    return _MEDIA_TYPES.get(url.partition("?")[0].rpartition(".")[2].lower())
