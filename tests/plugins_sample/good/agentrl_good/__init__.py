"""A sound plugin package."""
