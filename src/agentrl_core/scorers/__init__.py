"""Built-in scorers, and the helpers with which scorers of other packages read answers and references."""

from agentrl_core.api.scored_text import Of, judged_text, references

__all__ = ["Of", "judged_text", "references"]
