"""Adapters that train unmodified agents of the Claude Agent SDK, and unmodified code with Anthropic clients."""
