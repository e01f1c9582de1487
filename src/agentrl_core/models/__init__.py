"""Policies built from nothing."""
