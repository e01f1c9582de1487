"""Episodes of any content, for property tests of what writes and reads them."""

import json

from hypothesis import strategies as st

from agentrl_core.types import (
    Episode,
    FinishReason,
    Grammar,
    Interaction,
    Outcome,
    Record,
    Sampling,
    Task,
    ToolCall,
    ToolOutcome,
)

TEXT = st.text(max_size=8)
NUMBER = st.floats(allow_nan=False, allow_infinity=False)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | NUMBER | TEXT,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(TEXT, inner, max_size=2),
    max_leaves=4,
)
OBJECT = st.dictionaries(TEXT, JSON, max_size=2)
IDS = st.lists(st.integers(0, 2**31 - 1), max_size=4).map(tuple)
CALL = st.builds(
    lambda name, call, arguments: {"id": call, "type": "function", "function": {"name": name, "arguments": arguments}},
    TEXT,
    TEXT,
    TEXT | OBJECT.map(json.dumps),
)
PART = st.one_of(
    st.builds(lambda text: {"type": "text", "text": text}, TEXT),
    st.sampled_from(
        ["data:image/png;base64,AA==", "https://x/y.jpg?z", "https://x/y", "data:image/tiff;base64,AA=="]
    ).map(lambda url: {"type": "image_url", "image_url": {"url": url}}),
    OBJECT.map(lambda value: {"type": "audio", "audio": value}),
)
CONTENT = st.none() | TEXT | st.lists(PART, max_size=2)


@st.composite
def messages(draw, roles=("system", "developer", "user", "assistant", "tool")):
    role = draw(st.sampled_from(roles))
    message = {"role": role, "content": draw(CONTENT)}
    if role == "tool":
        message["tool_call_id"] = draw(TEXT)
    if role == "assistant":
        if calls := draw(st.lists(CALL, max_size=2)):
            message["tool_calls"] = calls
        if thoughts := draw(TEXT):
            message["reasoning_content"] = thoughts
    return message


@st.composite
def samplings(draw):
    return Sampling(
        temperature=draw(NUMBER),
        top_k=draw(st.integers(0, 9)),
        max_tokens=draw(st.none() | st.integers(1, 9)),
        stop=tuple(draw(st.lists(TEXT, max_size=2))),
        stop_token_ids=draw(IDS),
        seed=draw(st.integers(0, 2**63 - 1)),
        grammar=draw(st.none() | st.builds(Grammar, kind=st.sampled_from(["json_object", "regex"]), value=TEXT)),
    )


@st.composite
def interactions(draw, seq):
    output = draw(IDS)
    cut = draw(st.integers(0, len(output)))
    runs = ((1, cut), (2, len(output) - cut))
    upstream = draw(st.sampled_from(["", "", "judge"]))
    return Interaction(
        id=f"call-{seq}",
        record_id="r0",
        seq=seq,
        parent=draw(st.sampled_from([None, *(f"call-{number}" for number in range(seq))])) if not upstream else None,
        prompt_ids=() if upstream else draw(IDS),
        output_ids=() if upstream else output,
        logprobs=() if upstream else tuple(draw(st.lists(NUMBER, min_size=len(output), max_size=len(output)))),
        versions=() if upstream else tuple(run for run in runs if run[1]),
        messages=tuple(draw(st.lists(messages(), max_size=3))),
        output=draw(messages(roles=("assistant",))),
        tools=tuple(draw(st.lists(OBJECT, max_size=2))),
        sampling=draw(samplings()),
        requested=draw(OBJECT),
        finish_reason=draw(st.sampled_from(FinishReason)),
        trainable=not upstream and draw(st.booleans()),
        upstream=upstream,
        cached_tokens=draw(st.integers(0, 9)),
        tool_errors=draw(st.integers(0, 2)),
        witness=draw(TEXT),
        digest=draw(TEXT),
        started_at=draw(NUMBER),
        finished_at=draw(st.floats(0, 2e9)),
    )


@st.composite
def tool_calls(draw, seq, calls):
    asked = [asked["id"] for item in calls for asked in item.output.get("tool_calls", ())]
    return ToolCall(
        id=f"tool-{seq}",
        record_id="r0",
        seq=seq,
        call_id=draw(st.sampled_from(asked)) if asked else draw(TEXT),
        name=draw(TEXT),
        arguments=draw(OBJECT | TEXT),
        server=draw(TEXT),
        sent=draw(st.none() | OBJECT),
        outcome=draw(st.sampled_from(ToolOutcome)),
        error=draw(TEXT),
        raw=draw(st.none() | st.lists(PART, max_size=2).map(tuple)),
        shown=tuple(draw(st.lists(PART, max_size=2))),
        attempts=draw(st.integers(0, 3)),
        middleware=tuple(draw(st.lists(TEXT, max_size=2))),
        started_at=draw(st.floats(0, 2e9)),
        finished_at=draw(st.floats(0, 2e9)),
        digest=draw(TEXT),
    )


@st.composite
def episodes(draw):
    calls = tuple(draw(interactions(seq)) for seq in range(draw(st.integers(0, 4))))
    record = Record(
        id="r0",
        run_id="run",
        task_id=draw(TEXT),
        group_id="g0",
        sample_index=draw(st.integers(0, 3)),
        attempt=draw(st.integers(0, 3)),
        is_eval=draw(st.booleans()),
        outcome=draw(st.sampled_from(Outcome)),
        reason=draw(TEXT),
        detail=draw(TEXT),
        reward=draw(st.none() | NUMBER),
        rewards={item.id: draw(NUMBER) for item in calls[:1]},
        score=draw(st.none() | NUMBER),
        score_parts=draw(st.dictionaries(TEXT, NUMBER, max_size=2)),
        score_details=draw(OBJECT),
        marks=tuple(draw(st.lists(TEXT, max_size=2, unique=True))),
        started_at=draw(NUMBER),
    )
    return Episode(
        record=record,
        interactions=calls,
        tool_calls=tuple(draw(tool_calls(seq, calls)) for seq in range(draw(st.integers(0, 3)))),
    )


TASKS = st.none() | st.builds(Task, id=TEXT, data=OBJECT, answer=st.none() | TEXT, scorer=st.none() | TEXT)
