"""Context policies for agentrl, which shorten the histories of long episodes before the policy sees them."""
