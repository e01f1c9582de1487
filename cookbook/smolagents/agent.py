"""A smolagents agent with one tool: ordinary code, nothing in it knows of training."""

from typing import Any

from smolagents import OpenAIModel, ToolCallingAgent, tool

MODEL = OpenAIModel(
    "gpt-4o-mini",
    api_key="unused while training",
    # only the model's own output is an assistant message; the text that smolagents writes about calls is not
    custom_role_conversions={"tool-call": "user", "tool-response": "user"},
)
PROMPTS: Any = {
    "system_prompt": "Follow the clue.",
    "planning": {"initial_plan": "", "update_plan_pre_messages": "", "update_plan_post_messages": ""},
    "managed_agent": {"task": "", "report": ""},
    "final_answer": {"pre_messages": "Answer.", "post_messages": "{{task}}"},
}
"""Short prompts: smolagents' own are thousands of tokens long."""


@tool
def move(dir: str, steps: int) -> str:  # noqa: A002  # the name that the model sees
    """Walk some steps in one direction.

    Args:
        dir: right, left, up or down.
        steps: How many steps.

    """
    return f"You went {steps} {dir}."


def build_agent() -> ToolCallingAgent:
    """Build the agent: a model, one tool beside `final_answer`, and a limit on its steps."""
    return ToolCallingAgent([move], MODEL, prompt_templates=PROMPTS, max_steps=2)
