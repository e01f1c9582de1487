"""The table of everything that can be named in a config: who registered it, and how to get it."""
