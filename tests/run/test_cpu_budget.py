"""Threads of learner and engine on the cores there are."""

import json

import pytest

from agentrl_core import config
from agentrl_core.run.cpu_budget import learner_threads

PROGRAM = """
import json, os, sys

class Watch:
    def find_spec(self, name, path=None, target=None):
        if name == "torch":
            print(json.dumps(os.environ.get("OMP_WAIT_POLICY")))
            os._exit(0)

sys.meta_path.insert(0, Watch())
from agentrl_core.cli import main
main(sys.argv[1:])
"""


def given(threads, lag, engine="embedded"):
    return config.parse(
        {
            "data": "tasks.jsonl",
            "trainer": {"threads": threads},
            "rollout": {"max_head_offpolicyness": lag},
            "engine": engine,
        }
    )


@pytest.mark.parametrize(
    ("threads", "lag", "engine", "cores", "taken"),
    [
        (1, 0, "embedded", 1, 1),
        (2, 0, "embedded", 2, 2),  # in turn
        (8, 0, "embedded", 2, 2),
        (2, 1, "embedded", 2, 1),  # at once
        (8, 2, {"use": "embedded", "threads": 3}, 8, 5),
        (2, 1, "agentrl-core/embedded", 2, 1),
        (4, 1, {"use": "embedded", "threads": 9}, 4, 1),
        (2, 1, {"use": "sglang", "url": "http://127.0.0.1:1"}, 2, 2),  # samples elsewhere
    ],
)
def test_learner_and_engine_share_the_cores(threads, lag, engine, cores, taken):
    found, why = learner_threads(given(threads, lag, engine), cores)
    assert found == taken
    assert bool(why) == (taken != threads)


@pytest.mark.parametrize(("variables", "policy"), [({}, "PASSIVE"), ({"OMP_WAIT_POLICY": "ACTIVE"}, "ACTIVE")])
@pytest.mark.parametrize("command", ["run", "sft"])
def test_torch_is_imported_when_its_idle_threads_have_learnt_to_sleep(launch, tmp_path, command, variables, policy):
    (tmp_path / "agent.py").write_text("def run(data):\n    return 1.0\n", encoding="utf-8")
    (tmp_path / "tasks.jsonl").write_text('{"id": "t", "query": "q"}\n', encoding="utf-8")
    chat = [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]
    (tmp_path / "chats.jsonl").write_text(json.dumps({"messages": chat}) + "\n", encoding="utf-8")
    data = "data: tasks.jsonl\nworkflow: agent.py:run" if command == "run" else "data: chats.jsonl"
    (tmp_path / "config.yaml").write_text(f"model: {{use: tiny}}\n{data}\n", encoding="utf-8")
    done = launch(command, "config.yaml", program=["-c", PROGRAM], **variables)
    assert json.loads(done.stdout.splitlines()[-1]) == policy, done.stderr
