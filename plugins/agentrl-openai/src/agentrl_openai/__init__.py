"""Adapters that train unmodified agents of the OpenAI Agents SDK, and unmodified code with OpenAI clients."""
