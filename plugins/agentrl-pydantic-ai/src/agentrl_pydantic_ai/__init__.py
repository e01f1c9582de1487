"""Train Pydantic AI agents with agentrl, unmodified."""
