"""Middleware of tool calls: each class is one entry of `tools.middleware`."""
