"""Whatever an agent writes where its process answers fails its own episode at most, and never another."""

import json
import os
import resource
import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentrl_core.api.scoring import Answer
from agentrl_core.errors import EpisodeError, PluginError
from agentrl_core.rollout.failures import RemoteFailure
from agentrl_core.rollout.subproc.inside.frames import MAX_ANSWER_BYTES, answer_frame
from agentrl_core.rollout.subproc.inside.values import plain
from agentrl_core.rollout.subproc.worker_messages import Frames, ProtocolError, check, read_answer, read_start

HOSTILE = '''
import concurrent.futures
import gc
import struct
import sys

POOLS = []


def connection():
    """The socket on which this process answers, and the number of the running episode."""
    worker = next(item for item in gc.get_objects() if type(item).__name__ == "Worker")
    frame = sys._getframe()
    while "number" not in frame.f_locals:
        frame = frame.f_back
    return worker, worker._sock, frame.f_locals["number"]


def packed(text, body=b""):
    return struct.pack(">II", len(text), len(body)) + text + body


def done(number, value=None):
    return packed(json.dumps({"op": "done", "id": number, "value": value or {"number": 1.0}}).encode())


def late(worker, sock, number):
    """Writes once the episode is over, and the process said to be idle."""
    send = worker._send

    def follow(answer):
        send(answer)
        if answer["op"] == "idle":
            sock.sendall(done(number))

    worker._send = follow


def fork(worker, sock, number):
    child = os.fork()
    if not child:
        sock.sendall(b"from the child")
        os._exit(0)
    os.waitpid(child, 0)


def prints(worker, sock, number):
    os.dup2(sock.fileno(), 1)
    os.write(1, b"a thought")


def flood(worker, sock, number):
    while True:
        sock.sendall(done("f" * 32))


def leave(worker, sock, number):
    sock.sendall(done(number)[:-1])
    os._exit(0)


def close(worker, sock, number):
    os.close(sock.fileno())


def close_all(worker, sock, number):
    """Leaves a pool behind that the interpreter would wait for when it ends."""
    POOLS.append(concurrent.futures.ProcessPoolExecutor(1))
    POOLS[0].submit(os.getpid).result()
    os.closerange(0, 4096)


FAULTS = {
    "no JSON": lambda worker, sock, number: sock.sendall(packed(b"{")),
    "no UTF-8": lambda worker, sock, number: sock.sendall(packed(b'{"op": "\\xff"}')),
    "very deep": lambda worker, sock, number: sock.sendall(packed(b"[" * 100_000)),
    "no object": lambda worker, sock, number: sock.sendall(packed(b"[1]")),
    "too large": lambda worker, sock, number: sock.sendall(struct.pack(">II", 2**32 - 1, 0)),
    "a body": lambda worker, sock, number: sock.sendall(packed(b"{}", b"x" * 9)),
    "a text": lambda worker, sock, number: sock.sendall(b"hello, this is what I found:\\n"),
    "other numbers": lambda worker, sock, number: sock.sendall(b"".join(map(done, range(9)))),
    "twice": lambda worker, sock, number: sock.sendall(done(number) * 2),
    "an answer of its own": lambda worker, sock, number: sock.sendall(done(number)),
    "no value": lambda worker, sock, number: sock.sendall(done(number, {"number": "many"})),
    "begins again": lambda worker, sock, number: worker._send({"op": "began", "id": number}),
    "fork": fork,
    "prints": prints,
    "flood": flood,
    "late": late,
    "leave": leave,
    "close": close,
    "close all": close_all,
}


class Agent:
    def run(self, data, *, base_url, api_key):
        ask(data, base_url, api_key)
        if data.get("fault"):
            FAULTS[data["fault"]](*connection())
        return 0.5
'''
DIED = {"leave", "close", "close all"}
SCORED = {"late"}
FAULTS = [
    "no JSON", "no UTF-8", "very deep", "no object", "too large", "a body", "a text", "other numbers", "twice",
    "an answer of its own", "no value", "begins again", "fork", "prints", "flood", "late", "leave", "close",
    "close all",
]  # fmt: skip


def test_a_process_that_says_what_no_worker_says_is_replaced(agents, resolve, rehearsal, task):
    resolved = resolve(f"{agents(HOSTILE)}:Agent", "python")
    for number, fault in enumerate(FAULTS):
        (hostile,) = rehearsal.play(resolved, [task(number, fault=fault)], timeout_s=30.0)
        (sound,) = rehearsal.play(resolved, [task(number)], timeout_s=30.0)
        reason = "AgentProcessDied" if fault in DIED else "AgentProtocolError"
        expected = ("scored", "") if fault in SCORED else ("failed", reason)
        assert (hostile.record.outcome.value, hostile.record.reason) == expected, (fault, hostile.record.detail)
        assert len(hostile.record.detail) < 1000
        assert (sound.record.outcome.value, sound.record.reward) == ("scored", 0.5), (fault, sound.record.detail)


def test_a_process_that_says_nonsense_while_it_starts_is_told(agents, resolve):
    code = """
import gc
import socket

for item in gc.get_objects():
    if type(item) is socket.socket and item.family == socket.AF_UNIX:
        item.sendall(b"Loading checkpoint shards: 100%")


def run(data):
    return 1.0
"""
    with pytest.raises(PluginError, match=r"the agent's process wrote .*Loading checkpoint.* expected a message"):
        resolve(f"{agents(code)}:run", "python")


def test_processes_that_never_begin_an_episode_fail_it(agents, play):
    code = """
import sys


class Agent:
    def __init__(self):
        sys.modules["agentrl_worker.episodes"].Worker._listen = lambda worker: os._exit(5)

    def run(self, data):
        return 1.0
"""
    (record,) = play(f"{agents(code)}:Agent", "python")
    assert (record.outcome.value, record.reason) == ("failed", "AgentProcessDied")
    assert "3 processes in a row could not begin the episode" in record.detail


@pytest.fixture
def many_descriptors():
    """Descriptors up to 1,100 are in use."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < 2048:
        pytest.skip(f"no process here may have more than {hard} descriptors")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 2048), hard))
    held = []
    try:
        while not held or held[-1] < 1100:
            held.append(os.open(os.devnull, os.O_RDONLY))
        yield
    finally:
        for number in held:
            os.close(number)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.usefixtures("many_descriptors")
def test_a_run_with_thousands_of_connections_can_start_processes(agents, play):
    (record,) = play(f"{agents('def run(data, base_url, api_key): return {0: 0.25} if ask(data) else 0.0')}:run")
    assert (record.outcome.value, record.reward) == ("scored", 0.25), record.detail


def frames_of(data):
    frames = Frames()
    frames.add(data)
    return frames


@pytest.mark.parametrize("size", [MAX_ANSWER_BYTES, 2**31, 2**32 - 1])
def test_what_is_too_long_is_refused_before_it_is_read(size):
    with pytest.raises(ProtocolError, match=f"at most {MAX_ANSWER_BYTES} bytes"):
        frames_of(struct.pack(">II", size, 0)).next()


def test_messages_are_cut_wherever_the_pieces_end():
    messages = [{"op": "done", "id": "a", "value": {"number": 1.0}}, {"op": "idle", "id": "b"}, {"op": "é\x00"}]
    data = b"".join(map(answer_frame, messages))
    frames, found = Frames(), []
    for start in range(0, len(data), 7):
        frames.add(data[start : start + 7])
        while (message := frames.next()) is not None:
            found.append(message)
    assert found == messages


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
FIELDS = ("op", "id", "value", "type", "reason", "message", "place", "trace", "name", "is_async", "kind")
VALUES = st.fixed_dictionaries({}, optional=dict.fromkeys(("number", "pairs", "answer", "odd", "large"), JSON))
MESSAGES = st.fixed_dictionaries(
    {}, optional={**dict.fromkeys(FIELDS, JSON), "value": VALUES, "op": st.sampled_from(["done", "raised", "ready"])}
)


def accepted(read, *arguments):
    try:
        read(*arguments)
    except (ProtocolError, EpisodeError, RemoteFailure):
        return False
    return True


@settings(max_examples=50)
@given(MESSAGES)
def test_no_message_is_taken_for_more_than_it_is(message):
    answers = message.get("op") in ("done", "raised") and message.get("id") == "1"
    assert accepted(check, message, ("done", "raised"), "1") == answers
    if accepted(read_start, message):
        assert isinstance(message["is_async"], bool)
    if "op" in message and accepted(read_answer, message):
        assert message["op"] == "done"
        assert message["value"]


@settings(max_examples=50)
@given(st.integers(0, 12), st.sampled_from([0, 0, 0, 1]), st.binary(max_size=8) | st.sampled_from([b"{}", b'{"":1}']))
def test_no_bytes_are_taken_for_a_message_that_they_are_not(size, body, text):
    def is_object():
        try:
            return isinstance(json.loads(text[:size].decode()), dict)
        except ValueError:
            return False

    frames = frames_of(struct.pack(">II", size, body) + text)
    assert accepted(frames.next) == (body == 0 and (len(text) < size or is_object()))


@pytest.mark.parametrize(
    "value",
    [None, True, 3, 0.25, -0.0, 2**60, float("inf"), -(10**400), {"a": 1.0, 2: 0.5}, {0: {1: {2: 3}}}, {}],
)
def test_a_reward_arrives_as_it_was_returned(value):
    message = frames_of(answer_frame({"op": "done", "id": "1", "value": plain(value)})).next()
    assert read_answer(message) == (float("-inf") if value == -(10**400) else value)


def test_texts_that_are_no_unicode_arrive_replaced():
    assert frames_of(answer_frame({"op": "done", "value": {"answer": "a\ud800"}})).next()["value"] == {"answer": "a?"}
    assert read_answer({"op": "done", "value": {"answer": "4"}}) == Answer("4")


def test_what_is_too_large_to_be_sent_is_told_by_its_length():
    assert plain(bytes(10**7)) == {"odd": ["bytes", "of length 10000000"]}
    assert plain(dict.fromkeys(range(2**20 + 1))) == {"odd": ["dict", "of length 1048577"]}


def test_dicts_without_an_end_are_no_reward():
    endless = {}
    endless["again"] = endless
    message = json.loads(json.dumps({"op": "done", "value": plain(endless)}))
    with pytest.raises(EpisodeError, match="expected a number, found dict"):
        read_answer(message)
