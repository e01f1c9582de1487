"""Adapter that trains unmodified agents of smolagents."""
