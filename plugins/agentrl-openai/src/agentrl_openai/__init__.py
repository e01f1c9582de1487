"""Train agents of the OpenAI SDK and the OpenAI Agents SDK with agentrl, unmodified."""
