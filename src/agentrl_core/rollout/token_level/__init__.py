"""Workflows on token ids: an engine that records what it is asked, and what such workflows return."""
