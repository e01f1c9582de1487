"""Built-in scorers, and the helpers with which scorers of other packages read answers and references."""

from agentrl_core.api.scored_text import Of, references, scored_text

__all__ = ["Of", "references", "scored_text"]
