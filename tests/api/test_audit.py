"""Digests cover every field of a fact and do not depend on a store; seals are read back as they were written."""

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrl_core.api.audit import (
    Seal,
    call_digest,
    digested,
    record_digest,
    run_digest,
    step_digest,
    task_digest,
    tool_call_digest,
)
from agentrl_core.api.kept_tokens import mask_of
from agentrl_core.api.stores import GroupRow, RunRow, SealRow, StepRow
from agentrl_core.errors import UnstorableError
from agentrl_core.types import (
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

CALL = Interaction(
    id="chatcmpl-1",
    record_id="r",
    seq=0,
    prompt_ids=(1, 2),
    output_ids=(3,),
    logprobs=(-0.1,),
    versions=((4, 1),),
    messages=({"role": "user", "content": "hi"},),
    output={"role": "assistant", "content": "ho"},
)
RECORD = Record(id="r", run_id="run", task_id="t", group_id="g", sample_index=0)
GROUP = GroupRow(
    id="g", task_id="t", index=3, size=2, version=1, is_eval=False, task_set="train", state="taken", member_id="m",
    tries=0, takeovers=0,
)  # fmt: skip
STEP = StepRow(run_id="run", step=1, version=1, groups=("g",), records=("r",), metrics={"loss/value": float("nan")})
RUN = RunRow(id="run", created_at=1.0, status="running", config={"seed": 1}, components={})

CALLS = {
    "id": "b", "record_id": "s", "seq": 1, "parent": "p", "prompt_ids": (1, 3), "output_ids": (4,), "logprobs": (-0.2,),
    "kept": (mask_of([4, 5]),),
    "versions": ((5, 1),), "messages": (), "output": {}, "tools": ({},), "sampling": Sampling(seed=1),
    "requested": {"top_p": 1}, "finish_reason": FinishReason.LENGTH, "model": "m", "api": "messages",
    "trainable": False, "upstream": "u", "cached_tokens": 1, "tool_errors": 1, "witness": "w", "retry_key": "k",
    "started_at": 1.0, "finished_at": 1.0,
}  # fmt: skip
SAMPLINGS = {
    "temperature": 0.5, "top_p": 0.5, "top_k": 1, "max_tokens": 1, "stop": ("a",), "stop_token_ids": (1,),
    "min_tokens": 1, "ignore_eos": True, "seed": 1, "grammar": Grammar(kind="json_object"),
}  # fmt: skip
RECORDS = {
    "id": "b", "run_id": "b", "task_id": "b", "group_id": "b", "sample_index": 1, "attempt": 1, "is_eval": True,
    "task_set": "eval", "outcome": Outcome.FAILED, "reason": "b", "detail": "b", "reward": 0.0, "rewards": {"a": 1.0},
    "score": 0.0, "score_parts": {"a": 1.0}, "score_details": {"a": 1}, "started_at": 1.0, "finished_at": 1.0,
    "marks": ("tool_error",),
}  # fmt: skip
TOOL_CALL = ToolCall(id="a", record_id="r", seq=0, name="look", arguments={}, outcome=ToolOutcome.OK)
TOOL_CALLS = {
    "id": "b", "record_id": "s", "seq": 1, "call_id": "c", "name": "n", "arguments": "{", "server": "s", "tool": "t",
    "sent": {}, "isolation": "shared", "outcome": ToolOutcome.BLOCKED, "error": "e", "raw": (), "shown": ({"a": 1},),
    "attempts": 2, "middleware": ("m",), "started_at": 1.0, "finished_at": 1.0,
}  # fmt: skip


def names(cls):
    return {field.name for field in attrs.fields(cls)}


@pytest.mark.parametrize("name", sorted(names(Interaction) - {"digest"}))
def test_each_field_of_a_call_is_in_its_digest(name):
    assert call_digest(attrs.evolve(CALL, **{name: CALLS[name]})) != call_digest(CALL)


@pytest.mark.parametrize("name", sorted(names(ToolCall) - {"digest"}))
def test_each_field_of_a_tool_call_is_in_its_digest(name):
    changed = attrs.evolve(TOOL_CALL, **{name: TOOL_CALLS[name]})
    assert digested(changed).digest == tool_call_digest(changed) != tool_call_digest(TOOL_CALL)


def test_text_does_not_move_between_the_fields_of_a_tool_call():
    parts = ({"type": "text", "text": "x"},)
    one, other = attrs.evolve(TOOL_CALL, raw=parts, shown=()), attrs.evolve(TOOL_CALL, raw=(), shown=parts)
    assert tool_call_digest(one) != tool_call_digest(other)
    assert tool_call_digest(attrs.evolve(TOOL_CALL, arguments="{}")) != tool_call_digest(TOOL_CALL)


@pytest.mark.parametrize("name", sorted(names(Sampling)))
def test_each_sampling_parameter_is_in_the_digest(name):
    changed = attrs.evolve(CALL, sampling=Sampling(**{name: SAMPLINGS[name]}))
    assert call_digest(changed) != call_digest(CALL)


@pytest.mark.parametrize("name", sorted(names(Record)))
def test_each_field_of_a_record_is_in_its_digest(name):
    changed = attrs.evolve(RECORD, **{name: RECORDS[name]})
    assert record_digest(changed, GROUP) != record_digest(RECORD, GROUP)


def test_records_and_seals_without_tool_calls_keep_the_digests_of_earlier_versions():
    assert record_digest(RECORD, GROUP) == "ab9513dd9e0157c7205f0d9394646710"
    seal = Seal(run_id="r", number=0, previous="", kind="records", sealed_at=1.0, records={"r": ["d", "c"]})
    assert seal.row().digest == "2724badfd6631b552c0bc42834649f1e091baf093793deec8a4fbe3f74076ad7"


@pytest.mark.parametrize("name", ["id", "task_id", "index", "size", "version", "is_eval", "task_set"])
def test_the_place_of_its_group_is_in_a_record_s_digest(name):
    changed = attrs.evolve(GROUP, **{name: "x" if isinstance(getattr(GROUP, name), str) else 9})
    assert record_digest(RECORD, changed) != record_digest(RECORD, GROUP)
    moved = attrs.evolve(GROUP, state="trained", member_id="", takeovers=2)  # these go on changing
    assert record_digest(RECORD, moved) == record_digest(RECORD, GROUP)


def test_tasks_steps_and_runs_are_covered_but_for_what_changes_later():
    task = Task(id="t", data={"query": "a"})
    for name, value in {"id": "u", "data": {}, "answer": "", "scorer": "f1", "answer_schema": "boxed"}.items():
        assert task_digest(attrs.evolve(task, **{name: value})) != task_digest(task)
    for name, value in {"run_id": "x", "step": 2, "version": 2, "groups": (), "records": (), "metrics": {}}.items():
        assert step_digest(attrs.evolve(STEP, **{name: value})) != step_digest(STEP)
    assert step_digest(attrs.evolve(STEP, voided=True)) == step_digest(STEP)
    for name, value in {"id": "x", "created_at": 2.0, "config": {}, "components": {"a": "b"}}.items():
        assert run_digest(attrs.evolve(RUN, **{name: value})) != run_digest(RUN)
    assert run_digest(attrs.evolve(RUN, status="finished", error="e")) == run_digest(RUN)


def test_a_token_cannot_move_between_arrays():
    joined = attrs.evolve(CALL, prompt_ids=(1, 2, 3), output_ids=())
    assert call_digest(joined) != call_digest(CALL)


def test_a_digest_does_not_depend_on_how_a_store_restores_numbers_and_keys():
    other = attrs.evolve(
        CALL,
        logprobs=(-0.10000000149011612,),  # rounded to 32 bits
        sampling=Sampling(temperature=1, top_p=1),
        output={"content": "ho", "role": "assistant"},
        started_at=0,
    )
    assert call_digest(other) == call_digest(CALL)


def test_the_canonical_forms_stay_as_they_are():
    """Seals of old runs could not be verified otherwise; a changed form needs a number of its own."""
    assert call_digest(CALL) == "d93a11aecf1597a8b9fed1e787774a29"
    assert record_digest(RECORD, GROUP) == "ab9513dd9e0157c7205f0d9394646710"
    assert step_digest(STEP) == "744c5a4dd4db1465213efbd4b61871d1"


def test_values_that_no_store_keeps_are_refused():
    for change in ({"output_ids": (2**31,)}, {"logprobs": (1e300,)}, {"requested": {"a": object()}}):
        with pytest.raises(UnstorableError, match="chatcmpl-1"):
            digested(attrs.evolve(CALL, **change))
    assert digested(attrs.evolve(CALL, output={"content": "\ud800", "big": 2**70})).digest


words = st.text(max_size=5)
digests = st.dictionaries(words, words, max_size=3)


@given(
    st.builds(
        Seal,
        run_id=words,
        number=st.integers(0, 9),
        previous=words,
        kind=st.sampled_from(["start", "resume", "records", "step", "end"]),
        sealed_at=st.floats(0, 4e9),
        run=words,
        config=words,
        packages=digests,
        tasks=st.dictionaries(words, digests, max_size=2),
        records=st.dictionaries(words, st.lists(words, min_size=1, max_size=3), max_size=3),
        steps=st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9), words, st.booleans()), max_size=2).map(tuple),
        voided_after=st.none() | st.integers(0, 9),
        versions=digests,
        checkpoints=digests,
        weights=digests,
        open_groups=st.lists(words, max_size=2),
    )
)
def test_a_seal_is_read_back_as_it_was_written(seal):
    row = seal.row()
    again = Seal.of(row)
    assert again.row() == row
    assert (again.records, again.tasks, again.steps, again.voided_after) == (
        {name: list(item) for name, item in seal.records.items()},
        seal.tasks,
        seal.steps,
        seal.voided_after,
    )


@pytest.mark.parametrize(
    "body",
    ["", "[]", "{}", "null", '{"format": 2}', '{"format": 1}', "[" * 100_000,
     '{"format": 1, "run_id": "r", "number": "0", "previous": "", "kind": "end", "sealed_at": 1}',
     '{"format": 1, "run_id": "r", "number": 0, "previous": "", "kind": "end", "sealed_at": 1, "records": [1]}',
     '{"format": 1, "run_id": "r", "number": 0, "previous": "", "kind": "end", "sealed_at": 1, "steps": [[1]]}',
     '{"format": 1, "run_id": "r", "number": 0, "previous": "", "kind": "end", "sealed_at": 1, "other": 1}'],
)  # fmt: skip
def test_a_text_that_is_no_seal_is_refused(body):
    with pytest.raises(ValueError, match=r"."):
        Seal.of(SealRow(run_id="r", number=0, body=body, digest=""))
