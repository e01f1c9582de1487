"""Train CAMEL agents with agentrl, unmodified, in an interpreter of their own."""
