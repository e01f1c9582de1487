"""Built-in scorers, and the helpers with which scorers of other packages read answers and references."""

from agentrl_core.api.reading import Of, judged_text, references

__all__ = ["Of", "judged_text", "references"]
