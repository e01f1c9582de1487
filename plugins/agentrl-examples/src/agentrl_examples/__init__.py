"""Parts that the example agents in agentrl's packages share; imports only the standard library."""
