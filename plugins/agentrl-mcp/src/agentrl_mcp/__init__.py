"""Tool servers of agentrl that speak the Model Context Protocol (MCP), or AgentDock's REST."""
