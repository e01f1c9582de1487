"""The export format `agentrl`: the documents of AgentCPM's AgentRL, another project, for tools made for its database.

A line is `{"collection": …, "document": …}`. A record becomes a `Task`, a `Record`, a `DispatchedSamplingTask` per LLM
call, and a `DBRecordData` per branch. There a group is a `Task` document, so records of one group share its `tid`. The
project stores sampled tokens as text; the exact ids are beside it, in `token_ids`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from agentrl_core.data.export.branches import branches_of
from agentrl_core.data.export.chat import branch_messages, openai_message
from agentrl_core.data.tool_calls import by_asking_call, tool_call_facts
from agentrl_core.types import Outcome, ToolOutcome

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from agentrl_core.data.export.branches import Branch
    from agentrl_core.types import Episode, Interaction, Record, Task, ToolCall

_STATUS = {
    Outcome.RUNNING: "running",
    Outcome.SCORED: "ready",
    Outcome.REJECTED: "failed",
    Outcome.FAILED: "failed",
    Outcome.TIMED_OUT: "failed",
    Outcome.CANCELLED: "failed",
}
_DEFAULT_SCORER = "agentcpm"


def documents(
    episode: Episode,
    task: Task | None,
    *,
    group: Sequence[Record],
    is_first: bool,
    trained_steps: Sequence[int] = (),
    token_text: Callable[[int], str],
) -> Iterator[dict[str, Any]]:
    """Yield the documents of one record.

    `group` are the records of its group, whose `Task` comes with the one that `is_first`. `trained_steps` are the
    optimizer steps that consumed the record. `token_text` returns the text of a token id. Advantages are not stored, so
    `advantages` is empty.
    """
    record = episode.record
    split = "eval" if record.is_eval else "train"
    if is_first:
        yield _line("Task", _task(record, task, group, split))
    yield _line("Record", _record(episode, split, trained_steps))
    tool_calls = by_asking_call(episode)
    for item in episode.interactions:
        failed = any(call.outcome is not ToolOutcome.OK for call in tool_calls.get(item.id, ()))
        yield _line("DispatchedSamplingTask", _sampled(item, episode, token_text, tool_failed=failed))
    for branch in branches_of(episode):
        yield _line("DBRecordData", _training_data(branch, record, split, token_text))


def _line(collection: str, document: Mapping[str, Any]) -> dict[str, Any]:
    return {"collection": collection, "document": document}


def _task(record: Record, task: Task | None, group: Sequence[Record], split: str) -> dict[str, Any]:
    data: Mapping[str, Any] = {} if task is None else task.data
    answer = None if task is None else task.answer
    query = data.get("query") or ""
    scores = [item.reward for item in group if item.reward is not None]
    return {
        "tid": record.group_id,
        "split": split,
        "epoch": 0,
        "added_step": 0,
        "description": query,
        "num_samples": len({item.sample_index for item in group}),
        "scores": scores,
        "status": "running" if any(item.outcome is Outcome.RUNNING for item in group) else "completed",
        "system_prompt": data.get("system_prompt"),
        "query_prompt": data.get("query_prompt"),
        "answer_schema": (task.answer_schema if task is not None else "") or "answer",
        "task_answer": {"answer": answer, "aug_answer": list(data.get("aug_answers") or ()), "query": query},
        "scorer": (task.scorer if task is not None else None) or _DEFAULT_SCORER,
        "task_id": record.task_id,
        "turns": [],
    }


def _record(episode: Episode, split: str, trained_steps: Sequence[int]) -> dict[str, Any]:
    record = episode.record
    return {
        "_id": record.id,
        "task": record.group_id,
        "split": split,
        "traj_id": record.sample_index,
        "traj": [item.id for item in episode.interactions],
        "meta_infos": {
            "outcome": record.outcome.value,
            "reason": record.reason,
            "error_detail": record.detail,
            "turns": len(episode.interactions),
            "score_parts": dict(record.score_parts),
            **({"marks": list(record.marks)} if record.marks else {}),
            **({"tool_calls": [_tool_call(call) for call in episode.tool_calls]} if episode.tool_calls else {}),
        },
        "status": _STATUS[record.outcome],
        "score": record.reward,
        "trained_count": len(trained_steps),
        "last_trained_step": max(trained_steps, default=-1),
    }


def _tool_call(call: ToolCall) -> dict[str, Any]:
    """Return a tool call without its contents, which are in the messages."""
    arguments = call.arguments if isinstance(call.arguments, str) else dict(call.arguments)
    return {"id": call.call_id or call.id, "name": call.name, "arguments": arguments, **tool_call_facts(call)}


def _sampled(
    item: Interaction, episode: Episode, token_text: Callable[[int], str], *, tool_failed: bool
) -> dict[str, Any]:
    lineage = episode.lineage(item)
    request = [message for call in lineage[:-1] for message in (*call.messages, call.output)]
    prompt = len(episode.full_ids(item)) - len(item.output_ids)
    content = _logprobs(item, token_text)
    return {
        "_id": item.id,
        "task": episode.record.group_id,
        "traj_id": episode.record.sample_index,
        "req_type": "completions" if item.api == "completions" else "chatcompletions",
        "request": {
            "messages": [openai_message(message) for message in (*request, *item.messages)],
            "model": item.model,
            "tools": [dict(tool) for tool in item.tools],
            "temperature": item.sampling.temperature,
            "top_p": item.sampling.top_p,
            "max_tokens": item.sampling.max_tokens,
        },
        "response": {
            "id": item.id,
            "model": item.model,
            "choices": [
                {
                    "index": 0,
                    "message": openai_message(item.output),
                    "finish_reason": "tool_calls" if item.output.get("tool_calls") else item.finish_reason.value,
                    "logprobs": {"content": content} if content else None,
                }
            ],
            "usage": {
                "prompt_tokens": prompt,
                "completion_tokens": len(item.output_ids),
                "total_tokens": prompt + len(item.output_ids),
            },
        },
        "sampled_from": item.upstream or "policy",
        "priority": 0,
        "creat_time": item.started_at,  # spelled like this there
        "finish_time": item.finished_at,
        "score": episode.record.rewards.get(item.id, episode.record.reward),
        "advantage": None,
        "created_at_step": _version(item),
        "is_minio_managed": False,
        "task_type": "policy" if item.trainable else "other",
        "status": "formaterror" if item.tool_errors else "toolfailed" if tool_failed else "completed",
        "token_ids": list(item.output_ids),
    }


def _training_data(branch: Branch, record: Record, split: str, token_text: Callable[[int], str]) -> dict[str, Any]:
    """Return the merged row of a branch; its maps are keyed by the index of a sampled message, as text."""
    ends, count = {}, 0
    for call in branch.calls:
        count += len(call.messages) + 1
        ends[str(count - 1)] = call
    own = {index: call for index, call in ends.items() if call.trainable and call.id not in branch.shared}
    return {
        "split": split,
        "fetched": False,
        "messages": branch_messages(branch),
        "tools": [dict(tool) for tool in branch.calls[-1].tools],
        "scores": {index: record.rewards.get(call.id, record.reward) for index, call in own.items()},
        "advantages": {},
        "created_at_step": {index: _version(call) for index, call in own.items()},
        "reward": record.reward,
        "step": max((_version(call) for call in own.values()), default=0),
        "logprobs": {index: _logprobs(call, token_text) for index, call in own.items()},
        "record_id": record.id,
    }


def _version(item: Interaction) -> int:
    """Return the policy version of the first sampled token."""
    return item.versions[0][0] if item.versions else 0


def _logprobs(item: Interaction, token_text: Callable[[int], str]) -> list[dict[str, Any]]:
    return [
        {"token": token_text(token), "logprob": logprob, "bytes": None, "top_logprobs": []}
        for token, logprob in zip(item.output_ids, item.logprobs, strict=True)
    ]
