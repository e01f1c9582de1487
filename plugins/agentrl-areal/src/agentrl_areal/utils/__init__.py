"""Counterpart of `areal.utils`: the modules that workflows and agents import."""
