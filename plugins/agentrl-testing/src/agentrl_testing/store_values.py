"""Values for the conformance suite of stores: strategies of records and calls, and functions that fill a run."""

from __future__ import annotations

import itertools
import json
import string
from collections.abc import Callable
from typing import Any

import attrs
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from agentrl_core.api.claims import Admission, GroupClaim
from agentrl_core.api.kept_tokens import mask_of
from agentrl_core.api.members import Member, Role
from agentrl_core.api.stores import RunRow, SessionRow, StepRow, Store
from agentrl_core.types import (
    FinishReason,
    Grammar,
    Interaction,
    Outcome,
    Record,
    Sampling,
    ToolCall,
    ToolOutcome,
    run_lengths,
)

UNLIMITED = Admission(max_head_offpolicyness=99, tasks_per_step=99, requeue=9)
"""Admission of as many groups as a test asks for."""

fresh = itertools.count()

# `st.text` draws no lone surrogates; messages that arrive over HTTP as UTF-8 have none either.
texts = st.text(max_size=20)
_ids = st.text(string.ascii_lowercase + string.digits, min_size=4, max_size=8)
_floats = st.floats(allow_nan=False, allow_infinity=False)
_times = st.floats(0, 4e9)
_json = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | _floats | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=6,
)
objects = st.dictionaries(texts, _json, max_size=3)
_tool_calls = st.lists(
    st.builds(
        lambda call, name, arguments: {
            "id": call,
            "type": "function",
            "function": {"name": name, "arguments": json.dumps(arguments)},
        },
        _ids,
        _ids,
        objects,
    ),
    min_size=1,
    max_size=3,
)
_messages = st.one_of(
    st.builds(lambda role, content: {"role": role, "content": content}, st.sampled_from(["system", "user"]), texts),
    st.builds(lambda call, content: {"role": "tool", "tool_call_id": call, "content": content}, _ids, texts),
    st.builds(lambda content: {"role": "assistant", "content": content}, texts | st.none()),
    st.builds(lambda calls: {"role": "assistant", "content": None, "tool_calls": calls}, _tool_calls),
)
_sampling = st.builds(
    Sampling,
    temperature=st.floats(0, 2),
    top_p=st.floats(0, 1),
    top_k=st.integers(0, 100),
    max_tokens=st.none() | st.integers(1, 9999),
    stop=st.lists(texts, max_size=2).map(tuple),
    stop_token_ids=st.lists(st.integers(0, 2**31 - 1), max_size=2).map(tuple),
    min_tokens=st.integers(0, 9),
    ignore_eos=st.booleans(),
    seed=st.integers(0, 2**63 - 1),
    grammar=st.none() | st.builds(Grammar, kind=st.sampled_from(("json_object", "lark")), value=texts),
)
_masks = st.sets(st.integers(0, 2**31 - 1), max_size=5).map(mask_of)
_token_ids = st.lists(st.integers(0, 2**31 - 1), max_size=40).map(tuple)


@st.composite
def interactions(draw: st.DrawFn) -> Interaction:
    """Draw an arbitrary LLM call as a gateway could record it; the test sets `record_id` and `seq`."""
    output_ids = draw(_token_ids)
    count = len(output_ids)
    return Interaction(
        id=f"chatcmpl-{next(fresh)}",
        record_id="",
        seq=0,
        parent=draw(st.none() | _ids),
        prompt_ids=draw(_token_ids),
        output_ids=output_ids,
        logprobs=tuple(draw(st.lists(st.floats(-100, 0, width=32), min_size=count, max_size=count))),
        kept=draw(st.just(()) | st.lists(_masks, min_size=count, max_size=count).map(tuple)),
        versions=run_lengths(sorted(draw(st.lists(st.integers(0, 3), min_size=count, max_size=count)))),
        messages=tuple(draw(st.lists(_messages, max_size=3))),
        output=draw(_messages),
        tools=tuple(draw(st.lists(objects, max_size=2))),
        sampling=draw(_sampling),
        requested=draw(objects),
        finish_reason=draw(st.sampled_from(FinishReason)),
        model=draw(texts),
        api=draw(texts),
        trainable=draw(st.booleans()),
        upstream=draw(texts),
        cached_tokens=draw(st.integers(0, 9999)),
        tool_errors=draw(st.integers(0, 9)),
        witness=draw(_ids),
        retry_key=draw(_ids),
        started_at=draw(_times),
        finished_at=draw(_times),
    )


_parts = st.lists(
    st.builds(lambda text: {"type": "text", "text": text}, texts)
    | st.just({"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}})
    | objects,
    max_size=3,
).map(tuple)
_any_text = st.text(st.characters(), max_size=20)
"""With lone surrogates, which names and texts of a model may have."""


@st.composite
def tool_calls(draw: st.DrawFn) -> ToolCall:
    """Draw an arbitrary tool call; the test sets `record_id` and `seq`."""
    return ToolCall(
        id=f"tool-{next(fresh)}",
        record_id="",
        seq=0,
        call_id=draw(texts),
        name=draw(texts),
        arguments=draw(objects | _any_text),
        server=draw(texts),
        tool=draw(texts),
        sent=draw(st.none() | objects),
        isolation=draw(st.sampled_from(["", "shared", "session", "process"])),
        outcome=draw(st.sampled_from(ToolOutcome)),
        error=draw(texts),
        raw=draw(st.none() | _parts),
        shown=draw(_parts),
        attempts=draw(st.integers(0, 9)),
        middleware=tuple(draw(st.lists(texts, max_size=2))),
        started_at=draw(_times),
        finished_at=draw(_times),
    )


finals = st.builds(
    lambda **fields: fields,
    outcome=st.sampled_from([outcome for outcome in Outcome if outcome is not Outcome.RUNNING]),
    reason=texts,
    detail=texts,
    reward=st.none() | _floats,
    rewards=st.dictionaries(_ids, _floats, max_size=3),
    score=st.none() | _floats,
    score_parts=st.dictionaries(texts, _floats, max_size=3),
    score_details=st.dictionaries(texts, texts | st.lists(st.integers() | st.none()), max_size=3),
    marks=st.lists(texts, max_size=3, unique=True).map(tuple),
    finished_at=_times,
)

# All examples share the suite's store, because each uses new ids and a new run.
shared_store = settings(
    max_examples=30,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.differing_executors],
)


async def create_run(store: Store, name: str = "") -> str:
    """Create a run, and return its name."""
    name = name or f"run-{next(fresh)}"
    await store.create_run(RunRow(id=name, created_at=1.0, status="running", config={}, components={}))
    return name


async def add_group(store: Store, run: str, *, task_id: str = "t") -> str:
    """Add a group for records that no member claims."""
    (name,) = await store.add_evaluation(run, "eval", [task_id], version=0, claimable=False)
    return name


async def join(store: Store, run: str, *, role: Role = "sample", **fields: Any) -> str:
    """Add a member of a run, and return its id."""
    member = Member(run_id=run, role=role, **fields)
    await store.join(member)
    return member.id


async def claim(
    store: Store,
    run: str,
    member: str,
    count: int = 1,
    *,
    admission: Admission = UNLIMITED,
    size: int = 4,
    version: int = 0,
    task_at: Callable[[int], str] | None = "task-{}".format,
) -> list[GroupClaim]:
    """Claim groups for a member; without `admission`, as many as are asked for."""
    return await store.claim_groups(
        run, member, count, admission=admission, size=size, version=version, task_at=task_at
    )


async def sampling_run(store: Store, *, num_members: int = 1) -> tuple[str, ...]:
    """Create a run whose sampling has begun, and return its name and its members' ids."""
    run = await create_run(store)
    await store.admit(run, 0)
    return run, *[await join(store, run) for _ in range(num_members)]


async def score(store: Store, run: str, its: GroupClaim, slot: int = 0, **fields: Any) -> Record:
    """Add the scored record of a slot of a claimed group."""
    record = await add_record(store, run, its.group_id, member_id=its.member_id, sample_index=slot, **fields)
    scored = attrs.evolve(record, outcome=Outcome.SCORED, reward=1.0)
    assert await store.finish_record(scored)
    return scored


async def states(store: Store, run: str) -> dict[int, str]:
    """Return the state of the last training group of each position."""
    return {group.index: group.state for group in await store.groups(run) if not group.is_eval}


async def add_record(
    store: Store,
    run: str,
    group: str,
    *,
    record_id: str = "",
    task_id: str = "t",
    sample_index: int = 0,
    member_id: str = "",
    **fields: Any,
) -> Record:
    """Announce a record, as a member's own with `member_id`."""
    record = Record(
        id=record_id or f"record-{next(fresh)}",
        run_id=run,
        task_id=task_id,
        group_id=group,
        sample_index=sample_index,
        **fields,
    )
    await store.add_record(record, member_id=member_id)
    return record


def call(record: Record, *, seq: int = 0, **fields: Any) -> Interaction:
    """Return a small interaction of `record`."""
    default = {
        "prompt_ids": (1, 2),
        "output_ids": (3,),
        "logprobs": (-0.5,),
        "versions": ((0, 1),),
        "messages": ({"role": "user", "content": "hi"},),
        "output": {"role": "assistant", "content": "ho"},
    }
    return Interaction(id=f"chatcmpl-{next(fresh)}", record_id=record.id, seq=seq, **{**default, **fields})


def tool_call(record: Record, *, seq: int = 0, **fields: Any) -> ToolCall:
    """Return a small tool call of `record`."""
    default = {"name": "look", "arguments": {"at": "c3"}, "server": "fields", "tool": "look", "outcome": ToolOutcome.OK}
    return ToolCall(id=f"tool-{next(fresh)}", record_id=record.id, seq=seq, **{**default, **fields})


def session(record: Record, **fields: Any) -> SessionRow:
    """Return a session of `record`."""
    default = {"task_id": "t", "key_hash": b"key", "token_hash": b"token", "seed_key": (0, 2**62), "opened_at": 2.0}
    policy = {"temperature": 0.5, "max_tokens": None}
    ids = {"record_id": record.id, "run_id": record.run_id, "group_id": record.group_id}
    return SessionRow(policy=policy, **{**ids, **default, **fields})


def step(run: str, step: int, **fields: Any) -> StepRow:
    """Return a step whose published version equals its number."""
    default = {"version": step, "groups": (), "records": (), "metrics": {}}
    return StepRow(run_id=run, step=step, **{**default, **fields})
