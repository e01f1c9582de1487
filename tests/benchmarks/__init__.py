"""Benchmarks against other projects, run by `nox -s benchmarks`."""
