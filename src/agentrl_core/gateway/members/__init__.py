"""Serve the episodes of sampling members in other processes: open and close their sessions, and sample on token ids."""
