"""Scorers of answers, and what those of other packages read of an episode as these do."""

from agentrl_core.api.reading import Of, judged_text, references

__all__ = ["Of", "judged_text", "references"]
