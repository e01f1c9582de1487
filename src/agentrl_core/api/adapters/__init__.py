"""Shared parts of the adapters for agent frameworks: redirect an SDK's clients, and call a user's object per record."""
