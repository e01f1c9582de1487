"""Parsers of tool calls, one module per family of models, and the incremental reading that they share."""
