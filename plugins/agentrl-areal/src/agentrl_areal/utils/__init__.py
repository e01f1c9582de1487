"""Names of `areal.utils` that workflows and agents import."""
