"""Adapter that trains unmodified LangChain and LangGraph agents."""
