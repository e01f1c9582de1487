"""Writes new plugin packages that pass their conformance suite as they are."""
