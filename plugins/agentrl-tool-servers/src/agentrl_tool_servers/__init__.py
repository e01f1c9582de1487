"""MCP servers for agents in training, each run by `python -m agentrl_tool_servers.NAME` or built by its `server()`."""
