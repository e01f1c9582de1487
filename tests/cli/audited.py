"""A small project that is really trained, for tests of the commands that look back at a run."""

import contextlib
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from agentrl_core.cli import main
from agentrl_testing.policy import toy_policy

AGENT = '''
"""Two turns, a tool, two calls at once, and another party's model as judge; the reward follows from all replies."""
import asyncio
from pathlib import Path

from agentrl_core import workflow_context
from agentrl_core.api.scoring import training_step


def told(name):
    """Return the text that a test has put into a file after the run."""
    path = Path(__file__).with_name(name)
    return path.read_text() if path.exists() else ""


def look(at: str) -> str:
    """Look at a door."""
    with Path(__file__).with_name("looked.txt").open("a") as file:
        file.write(f"{at}\\n")
    if told("gone.txt"):
        raise ValueError("there is no door")
    return f"The door is {at}"


class Agent:
    async def run(self, data, *, base_url, api_key, http_client, record_id):
        async def ask(messages, **extra):
            body = {"model": "default", "messages": messages, "max_tokens": 6, **extra}
            reply = await http_client.post(
                f"{base_url}/v1/chat/completions", json=body, headers={"authorization": f"Bearer {api_key}"}
            )
            reply.raise_for_status()
            if "stream" in extra:
                assert "good" in reply.text, reply.text
                return None
            return reply.json()["choices"][0]["message"]

        tools = workflow_context.get().tools
        offered = {"tools": await tools.as_openai()}
        messages = [{"role": "system", "content": "Speak."}, *data["messages"]]
        first = await ask(messages, **offered)
        door = await tools.call("look", {"at": record_id[:4] + told("at.txt")})
        messages += [first, {"role": "user", "content": f"{door.result.text}{told('door.txt')}."}]
        again = {"role": "user", "content": "And in short?"}
        second, third = await asyncio.gather(ask(messages, **offered), ask([*messages[:2], again], **offered))
        if told("more.txt"):
            await ask([*messages, second, again], **offered)
        if told("twice.txt"):
            await tools.call("look", {"at": "again"})
        text = "".join(reply.get("content") or "" for reply in (first, second, third))
        question = [{"role": "user", "content": f"Is this good? {ascii(text)}{told('judge.txt')}"}]
        verdict = await ask(question, model="judge")
        await ask(question, model="judge", stream=True)
        good = len(verdict["content"])
        step = training_step.get() or 0  # as for a scorer that a schedule mixes in
        return sum(map(str.isalpha, text)) / 18 + good + 0.25 * step + float(told("bonus.txt") or 0)
'''
CONFIG = {
    "name": "calm-otter",
    "model": {"path": "policy"},
    "data": {"train": "tasks.jsonl", "eval": "tasks.jsonl"},
    "workflow": "speaker.py:Agent",
    "tools": {"servers": [{"use": "functions", "functions": ["speaker.py:look"]}]},
    "rollout": {"group_size": 2, "tasks_per_step": 2, "timeout_s": 20.0},
    "trainer": {"steps": 3, "lr": 1e-3, "save_steps": 2, "warmup_steps": 0},
    "eval": {"every": 3, "tasks": 1},
    "filters": [],
    "trackers": ["jsonl"],
}


class Judge(BaseHTTPRequestHandler):
    """A provider's model: its verdict is longer for a longer question."""

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        message = {"role": "assistant", "content": "good" + "!" * (len(str(body["messages"])) % 3)}
        choice = {"index": 0, "finish_reason": "stop"}
        head = {"id": "x", "created": 0, "model": body["model"]}
        if body["stream"]:
            head |= {"object": "chat.completion.chunk", "choices": [{**choice, "delta": message}]}
            self.reply("text/event-stream", f"data: {json.dumps(head)}\n\ndata: [DONE]\n\n")
        else:
            self.reply("application/json", json.dumps({**head, "choices": [{**choice, "message": message}]}))

    def reply(self, kind, text):
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, *_):
        pass


@contextlib.contextmanager
def judge():
    """Serve the judge, and yield its address."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Judge)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@pytest.fixture(scope="session")
def trained_project(tmp_path_factory):
    """The folder of a project whose run `calm-otter` has made three steps; do not write into it."""
    folder = tmp_path_factory.mktemp("audited")
    toy_policy(folder / "policy", architecture="qwen3", seed=0)
    (folder / "speaker.py").write_text(AGENT, encoding="utf-8")
    rows = [{"id": f"t{i}", "query": f"Say {word}.", "answer": word} for i, word in enumerate("abcd")]
    (folder / "tasks.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    with pytest.MonkeyPatch.context() as patch, judge() as url:
        config = {**CONFIG, "gateway": {"upstreams": {"judge": {"url": url, "model": "large"}}}}
        (folder / "config.yaml").write_text(json.dumps(config), encoding="utf-8")
        patch.chdir(folder)
        assert main(["run", "config.yaml"]) == 0
    return folder
