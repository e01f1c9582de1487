"""Plays one scenario with instructor, and prints what it shows."""

import json
import os
import sys

import anthropic
import instructor
import openai
from pydantic import BaseModel

API, SCENARIO, QUESTION = (os.environ[name] for name in ("API", "SCENARIO", "QUESTION"))
BASE_URL, API_KEY = os.environ["BASE_URL"], os.environ["API_KEY"]


class Answer(BaseModel):
    """Answer with one number."""

    value: int


def client():
    """Return the client of an API in instructor's mode for it."""
    if API == "messages":
        sdk = anthropic.Anthropic(base_url=BASE_URL.removesuffix("/v1"), api_key=API_KEY, max_retries=0)
        return instructor.from_anthropic(sdk, mode=instructor.Mode.ANTHROPIC_TOOLS)
    modes = {
        "chat": instructor.Mode.TOOLS,
        "chat_schema": instructor.Mode.JSON_SCHEMA,
        "responses": instructor.Mode.RESPONSES_TOOLS,
    }
    sdk = openai.OpenAI(base_url=BASE_URL, api_key=API_KEY, max_retries=0)
    return instructor.from_openai(sdk, mode=modes[API])


options = {
    "model": "default",
    "messages": [{"role": "user", "content": QUESTION}],
    "max_retries": 0,
    **({"max_tokens": 200} if API == "messages" else {}),
}
if SCENARIO == "stream":
    parts = list(client().chat.completions.create_partial(response_model=Answer, **options))
    shown = {"object": parts[-1].model_dump()}
else:
    shown = {"object": client().chat.completions.create(response_model=Answer, **options).model_dump()}
sys.stdout.write(json.dumps(shown) + "\n")
