"""Counterpart of `areal.experimental`, without content: importing its client raises an error with the replacement."""
