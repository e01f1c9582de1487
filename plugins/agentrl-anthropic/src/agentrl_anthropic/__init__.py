"""Train agents of the Anthropic SDK and the Claude Agent SDK with agentrl, unmodified."""
