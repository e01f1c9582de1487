"""Train the LLM agent that you already have with reinforcement learning."""
