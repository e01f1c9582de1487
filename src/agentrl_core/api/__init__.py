"""Everything that a plugin package imports from core: protocols, values and helpers, without torch at import."""
