"""Everything that plugin packages import beside `agentrl_core`, `errors` and `types`; none of it imports torch."""
