"""Train OpenHands agents with agentrl, unmodified, in an interpreter of their own."""
