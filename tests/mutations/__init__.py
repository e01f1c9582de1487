"""Mutation tests: break the source at one place at a time and check that a test fails; run by `nox -s mutations`."""
