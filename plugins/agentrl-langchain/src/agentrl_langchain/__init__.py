"""Train LangChain and LangGraph agents with agentrl, unmodified."""
