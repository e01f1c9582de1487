"""What workflows and agents import from `areal.utils`."""
