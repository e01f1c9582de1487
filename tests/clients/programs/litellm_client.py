"""Plays one scenario with LiteLLM, and prints what it shows."""

import json
import os
import sys

import litellm
from pydantic import BaseModel

API, SCENARIO, QUESTION = (os.environ[name] for name in ("API", "SCENARIO", "QUESTION"))
BASE_URL = os.environ["BASE_URL"]
PROVIDERS = {"chat": "openai", "messages": "anthropic", "hosted_vllm": "hosted_vllm"}
ADD = {
    "type": "function",
    "function": {
        "name": "add",
        "description": "Adds.",
        "parameters": {
            "type": "object",
            "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
            "required": ["a", "b"],
        },
    },
}


class Answer(BaseModel):
    """Answer with one number."""

    value: int


def ask(messages, **options):
    """Call the policy."""
    base = BASE_URL.removesuffix("/v1") if API == "messages" else BASE_URL
    key = os.environ["API_KEY"]
    model = f"{PROVIDERS[API]}/default"
    return litellm.completion(
        model=model, api_base=base, api_key=key, messages=messages, max_tokens=200, num_retries=0, **options
    )


def play():
    """Play the scenario and return what the client shows of it."""
    messages = [{"role": "user", "content": QUESTION}]
    if SCENARIO == "text":
        return {"text": ask(messages).choices[0].message.content}
    if SCENARIO == "stream":
        pieces = [chunk.choices[0].delta.content for chunk in ask(messages, stream=True)]
        pieces = [piece for piece in pieces if piece]
        return {"text": "".join(pieces), "pieces": len(pieces)}
    if SCENARIO == "structured":
        return {"object": json.loads(ask(messages, response_format=Answer).choices[0].message.content)}
    while True:
        reply = ask(messages, tools=[ADD]).choices[0].message
        if not reply.tool_calls:
            return {"text": reply.content}
        messages.append(reply.model_dump())
        for call in reply.tool_calls:
            result = f"sum={sum(json.loads(call.function.arguments).values())}"
            messages.append({"role": "tool", "tool_call_id": call.id, "content": result})


sys.stdout.write(json.dumps(play()) + "\n")
