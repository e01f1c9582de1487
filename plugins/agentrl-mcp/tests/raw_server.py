"""An MCP server without the SDK, which starts at once and misbehaves on request: over stdio, or over HTTP on a port.

python raw_server.py [--http PORT] [--era both|handshake|stateless] [--sse] [--asks] [--no-start]
"""

import argparse
import json
import os
import queue
import subprocess
import sys
import threading
from collections import defaultdict
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

parser = argparse.ArgumentParser()
parser.add_argument("--http", type=int)
parser.add_argument("--era", default="both")
parser.add_argument("--sse", action="store_true")
parser.add_argument("--asks", action="store_true")
parser.add_argument("--no-start", action="store_true")
options = parser.parse_args()

STATELESS = "2026-07-28"
KNOWN = ("2025-11-25", "2025-06-18")
COUNTS: dict = {}
"""State per episode or session -> number of calls of `count`."""
SESSIONS: set = set()
SEEN: list = []
"""Headers and paths of HTTP requests."""
LATER: dict = {}
"""Id of an event -> response that comes when the client asks for what followed that event."""
DECLARED: dict = {}
"""Capabilities of the last client that began a session."""
QUESTIONS: dict = defaultdict(queue.Queue)
"""Session -> what the stream of its GET request sends; None ends it."""
ANSWERS: queue.Queue = queue.Queue()
LOCK = threading.Lock()
TOOLS: dict = {}
"""Name -> description for `tools/list`."""
FUNCTIONS: dict = {}


class FailedError(Exception):
    def __init__(self, code, message, data=None):
        super().__init__(message)
        self.error = {"code": code, "message": message, **({"data": data} if data else {})}


def text(value, *, is_error=False):
    return {"content": [{"type": "text", "text": str(value)}], "isError": is_error}


def tool(function):
    """Offer a function of `(arguments, params, state, send)`."""
    name = function.__name__
    TOOLS[name] = {"name": name, "inputSchema": {"type": "object"}}
    FUNCTIONS[name] = function
    return function


@tool
def count(arguments, params, state, send):
    with LOCK:
        COUNTS[state] = COUNTS.get(state, 0) + 1
        return text(COUNTS[state])


@tool
def counted(arguments, params, state, send):
    return text(COUNTS.get(state, 0))


@tool
def echo(arguments, params, state, send):
    return text(arguments["text"])


TOOLS["echo"] |= {
    "description": "Returns the text.",
    "inputSchema": {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]},
    "annotations": {"readOnlyHint": True, "idempotentHint": True},
}


@tool
def write(arguments, params, state, send):
    Path("note.txt").write_text(arguments["text"])
    return text("written")


@tool
def read(arguments, params, state, send):
    return text(Path("note.txt").read_text() if Path("note.txt").exists() else "nothing")


@tool
def die(arguments, params, state, send):
    os._exit(arguments.get("status", 3))


@tool
def hang(arguments, params, state, send):
    threading.Event().wait()


@tool
def big(arguments, params, state, send):
    return text("x" * arguments["bytes"])


@tool
def wrong_shape(arguments, params, state, send):
    return {"answer": 42}


@tool
def fail(arguments, params, state, send):
    return text("no such file", is_error=True)


@tool
def refuse(arguments, params, state, send):
    raise FailedError(-32602, "Unknown argument", "use text")


@tool
def spawn(arguments, params, state, send):
    """Starts a process below the server, which detaches itself on request."""
    return text(subprocess.Popen(["sleep", "600"], start_new_session=arguments["detach"]).pid)


@tool
def pid(arguments, params, state, send):
    return text(os.getpid())


@tool
def seen(arguments, params, state, send):
    return text(json.dumps({"meta": params.get("_meta"), "headers": SEEN[-1:], "folder": str(Path.cwd())}))


@tool
def say(arguments, params, state, send):
    """Prints a line where only messages belong, as libraries do."""
    sys.stdout.write("loading the model\n")
    return text("said")


@tool
def grow(arguments, params, state, send):
    name = f"tool_{len(TOOLS)}"
    TOOLS[name] = {"name": name, "inputSchema": {"type": "object"}}
    send({"jsonrpc": "2.0", "method": "notifications/tools/list_changed"})
    return text(name)


@tool
def ask(arguments, params, state, send):
    """Asks the user, as servers do since 2026-07-28."""
    responses = params.get("inputResponses")
    if responses is None:
        form = {"type": "object", "properties": {"city": {"type": "string"}}}
        question = {"mode": "form", "message": "Which city?", "requestedSchema": form}
        asked = {"city": {"method": "elicitation/create", "params": question}}
        return {"resultType": "input_required", "inputRequests": asked, "requestState": "s1"}
    if params["requestState"] != "s1":
        raise FailedError(-32602, "wrong state")
    return text(json.dumps(responses["city"], sort_keys=True))


@tool
def ask_aside(arguments, params, state, send):
    """Asks the user on the stream of a GET request, as servers with sessions may."""
    if "elicitation" not in DECLARED:
        return text("the client cannot be asked", is_error=True)
    form = {"type": "object", "properties": {"city": {"type": "string"}}}
    stream = QUESTIONS[params["session"]]
    if arguments.get("break"):
        stream.put(None)
    question = {"mode": "form", "message": "Which city?", "requestedSchema": form}
    stream.put({"jsonrpc": "2.0", "id": "q1", "method": "elicitation/create", "params": question})
    return text(json.dumps(ANSWERS.get(timeout=30), sort_keys=True))


@tool
def parts(arguments, params, state, send):
    return arguments["result"]


@tool
def research(arguments, params, state, send):
    raise FailedError(-32601, "Tool research requires task augmentation")


TOOLS["research"]["execution"] = {"taskSupport": "required"}

for name in ("garbage", "other_id", "later"):
    TOOLS[name] = {"name": name, "inputSchema": {"type": "object"}}


def respond(message, state, send):
    """Return the result of a request."""
    method, params = message["method"], message.get("params") or {}
    if method == "server/discover":
        if options.era == "handshake":
            raise FailedError(-32601, "Method not found")
        return {
            "supportedVersions": [STATELESS],
            "capabilities": {"tools": {"listChanged": True}},
            "resultType": "complete",
        }
    if method == "initialize":
        if options.era == "stateless":
            raise FailedError(-32022, "Unsupported protocol version", {"supported": [STATELESS], "requested": "?"})
        version = params["protocolVersion"]
        DECLARED.clear()
        DECLARED.update(params["capabilities"])
        return {
            "protocolVersion": version if version in KNOWN else KNOWN[0],
            "capabilities": {"tools": {"listChanged": True}},
            "serverInfo": {"name": "raw", "version": "1"},
        }
    if method == "tools/list":
        # Two pages.
        if params.get("cursor"):
            return {"tools": [*TOOLS.values()][2:]}
        return {"tools": [*TOOLS.values()][:2], "nextCursor": "2"}
    if method == "tools/call":
        if params["name"] not in FUNCTIONS:
            raise FailedError(-32602, f"Unknown tool: {params['name']}")
        return FUNCTIONS[params["name"]](params.get("arguments") or {}, params, state, send)
    raise FailedError(-32601, "Method not found")


def message_for(message, state, send):
    try:
        return {"jsonrpc": "2.0", "id": message["id"], "result": respond(message, state, send)}
    except FailedError as error:
        return {"jsonrpc": "2.0", "id": message["id"], "error": error.error}


def name_of(message):
    return (message.get("params") or {}).get("name")


def stdio():
    lock = threading.Lock()

    def send(message):
        with lock:
            sys.stdout.write(json.dumps(message) + "\n")
            sys.stdout.flush()

    def work(message):
        meta = (message.get("params") or {}).get("_meta") or {}
        if name_of(message) == "garbage":
            with lock:
                sys.stdout.write(f'{{"jsonrpc": "2.0", "id": {message["id"]}, "result": {{"content": [\n')
                sys.stdout.flush()
            return
        if name_of(message) == "other_id":
            send({"jsonrpc": "2.0", "id": 10**6, "result": text("lost")})
            return
        send(message_for(message, meta.get("agentrl/episode", "shared"), send))

    for line in sys.stdin:
        message = json.loads(line)
        if "id" in message and "method" in message:
            threading.Thread(target=work, args=[message], daemon=True).start()


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    wbufsize = -1

    def log_message(self, *args):
        pass

    def reply(self, status, body=b"", kind="application/json", **headers):
        self.send_response(status)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(body)))
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self):
        """Continue a stream that ended early, or ask questions."""
        SEEN.append({key.lower(): value for key, value in self.headers.items()})
        if options.asks and "last-event-id" not in self.headers:
            self.send_response(200)
            self.send_header("content-type", "text/event-stream")
            self.send_header("connection", "close")
            self.end_headers()
            self.wfile.write(b"retry: 10\ndata: \n\n")
            self.wfile.flush()
            stream = QUESTIONS[self.headers.get("mcp-session-id", "")]
            while (question := stream.get()) is not None:
                self.wfile.write(f"data: {json.dumps(question)}\n\n".encode())
                self.wfile.flush()
            self.close_connection = True
            return
        answer = LATER.pop(self.headers.get("last-event-id"), None)
        if answer is None:
            self.reply(405)
        else:
            self.reply(200, f"data: {json.dumps(answer)}\n\n".encode(), "text/event-stream")

    def do_DELETE(self):
        SESSIONS.discard(self.headers.get("mcp-session-id"))
        self.reply(200)

    def do_POST(self):  # noqa: C901, PLR0911 - one return per fault
        message = json.loads(self.rfile.read(int(self.headers["content-length"])))
        SEEN.append({"path": self.path, **{key.lower(): value for key, value in self.headers.items()}})
        if self.path == "/moved":
            self.reply(307, location="/mcp")
            return
        if self.path == "/locked" and self.headers.get("authorization") != "Bearer key-1":
            self.reply(401, b"who are you?", "text/plain")
            return
        session = self.headers.get("mcp-session-id", "")
        if message.get("method") == "initialize":
            session = os.urandom(8).hex()
            SESSIONS.add(session)
        elif session and session not in SESSIONS:
            self.reply(404, b'{"jsonrpc":"2.0","id":null,"error":{"code":-32600,"message":"Session not found"}}')
            return
        message.setdefault("params", {})["session"] = session
        if "method" not in message:
            ANSWERS.put(message["result"])
        if "id" not in message or "method" not in message:
            self.reply(202)
            return
        state = self.headers.get("x-agentrl-episode") or session or "shared"
        match name_of(message):
            case "garbage":
                self.reply(200, b'{"jsonrpc": "2.0", "id": 1, "result": {"content": [')
                return
            case "later":
                LATER["e1"] = {"jsonrpc": "2.0", "id": message["id"], "result": text("at last")}
                told = (message["params"].get("arguments") or {}).get("id", "e1")
                self.reply(200, f"id: {told}\nretry: 10\ndata: \n\n".encode(), "text/event-stream")
                return
            case "refused" | "cut_off" as fault:
                self.reply({"refused": 503, "cut_off": 502}[fault], b"a proxy", "text/plain")
                return
            case "other_id":
                body = {"jsonrpc": "2.0", "id": 10**6, "result": text("lost")}
                self.reply(200, f"data: {json.dumps(body)}\n\n".encode(), "text/event-stream")
                return
        sent = []
        answer = message_for(message, state, sent.append)
        headers = {"mcp_session_id": session} if message.get("method") == "initialize" else {}
        if options.sse or sent:
            body = "".join(f"event: message\ndata: {json.dumps(item)}\n\n" for item in [*sent, answer])
            self.reply(200, body.encode(), "text/event-stream", **headers)
        else:
            status = 400 if answer.get("error", {}).get("code") == -32022 else 200
            self.reply(status, json.dumps(answer).encode(), **headers)


class Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 256


if options.no_start:
    sys.exit("the key is missing")
if options.http is None:
    stdio()
else:
    server = Server(("127.0.0.1", options.http), Handler)
    sys.stdout.write(f"{server.server_address[1]}\n")
    sys.stdout.flush()
    server.serve_forever()
