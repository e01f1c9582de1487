#!/usr/bin/env python3
"""Stands in for the program of the Claude Agent SDK: its protocol on stdin and stdout, one LLM call per question."""

import json
import os
import sys
import threading
import urllib.error
import urllib.request

ERROR = {"max_turns": "error_max_turns", "broken": "error_during_execution"}


def say(**message):
    """Write one line of the protocol."""
    sys.stdout.write(json.dumps(message) + "\n")
    sys.stdout.flush()


def ask(prompt):
    """Make the call and tell the result."""
    result = {"type": "result", "duration_ms": 1, "duration_api_ms": 1, "num_turns": 1, "session_id": "s"}
    body = {"model": "claude-opus-5", "max_tokens": 99, "messages": [{"role": "user", "content": prompt}]}
    request = urllib.request.Request(
        f"{os.environ['ANTHROPIC_BASE_URL']}/v1/messages",
        data=json.dumps(body).encode(),
        headers={"authorization": f"Bearer {os.environ['ANTHROPIC_AUTH_TOKEN']}", "content-type": "application/json"},
    )
    try:
        with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request) as response:
            reply = json.load(response)
    except urllib.error.HTTPError as error:
        text = json.load(error)["error"]["message"]
        say(**result, subtype="success", is_error=True, result=f"API Error: {text}")
        return
    say(type="assistant", message=reply, session_id="s")
    if prompt in ERROR:
        say(**result, subtype=ERROR[prompt], is_error=True, errors=[prompt])
    elif prompt == "environment":
        names = ("ANTHROPIC_API_KEY", "CLAUDE_CODE_MAX_RETRIES", "OWN", "CLAUDE_CONFIG_DIR", "PWD")
        told = {name: os.environ.get(name) for name in names}
        say(**result, subtype="success", is_error=False, result="{}", structured_output=told)
    else:
        say(**result, subtype="success", is_error=False, result=reply["content"][0]["text"])


for line in sys.stdin:
    message = json.loads(line)
    if message["type"] == "control_request":
        answer = {"subtype": "success", "request_id": message["request_id"], "response": {}}
        say(type="control_response", response=answer)
    elif message["type"] == "user":
        threading.Thread(target=ask, args=(message["message"]["content"],), daemon=True).start()
os._exit(0)  # a call may still be waiting
