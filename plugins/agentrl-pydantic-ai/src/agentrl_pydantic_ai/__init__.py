"""Adapter that trains unmodified Pydantic AI agents."""
