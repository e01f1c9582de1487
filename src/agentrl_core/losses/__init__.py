"""Policy-gradient losses and how they are aggregated."""
