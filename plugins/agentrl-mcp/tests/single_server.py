"""An MCP server that does one thing after the other, as many do: a call that hangs holds up all others.

It appends the texts of its calls of `note` to a file.
"""

import json
import os
import signal
import sys
from pathlib import Path

TOOLS = [{"name": name, "inputSchema": {"type": "object"}} for name in ("note", "pid", "power", "pause")]


def note(text):
    with Path(sys.argv[1]).open("a") as file:
        file.write(text + "\n")


def call(name, arguments):
    match name:
        case "note":
            note(arguments["text"])
        case "power":
            note("power")
            # Holds Python's lock for minutes, so that no thread can do anything.
            return str((9**9**9).bit_length())
        case "pause":
            note("pause")
            signal.pause()
    return str(os.getpid())


def respond(method, params):
    match method:
        case "initialize":
            return {"protocolVersion": "2025-11-25", "capabilities": {"tools": {}}, "serverInfo": {"name": "single"}}
        case "tools/list":
            return {"tools": TOOLS}
        case "tools/call":
            text = call(params["name"], params.get("arguments") or {})
            return {"content": [{"type": "text", "text": text}]}
    return {}


while line := os.read(0, 1 << 16):
    for item in line.splitlines():
        message = json.loads(item)
        if "id" in message:
            result = respond(message["method"], message.get("params"))
            sys.stdout.write(json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result}) + "\n")
            sys.stdout.flush()
