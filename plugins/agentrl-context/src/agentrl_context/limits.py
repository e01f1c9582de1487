"""The size of a prompt at which a context policy acts: options that all policies of this package have."""

from __future__ import annotations

from typing import TYPE_CHECKING

from attrs import field, frozen, validators

if TYPE_CHECKING:
    from agentrl_core.api.compaction import ContextUsage


@frozen(kw_only=True)
class Limited:
    """Base of the policies: the largest prompt that they leave alone."""

    max_prompt_tokens: int | None = field(default=None, validator=validators.optional(validators.ge(1)))
    """Largest prompt in tokens that is left as it is; None: by `max_prompt_share`."""
    max_prompt_share: float = field(default=0.6, validator=[validators.gt(0.0), validators.le(1.0)])
    """Largest such prompt as a share of the context length. A summary needs room after the prompt that it sums up."""

    def is_full(self, usage: ContextUsage) -> bool:
        """Return whether a prompt is above the limit."""
        if self.max_prompt_tokens is not None:
            return usage.prompt_tokens > self.max_prompt_tokens
        return usage.prompt_tokens > self.max_prompt_share * usage.context_length
