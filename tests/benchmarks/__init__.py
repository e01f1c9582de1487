"""Measurements against peers, run by `nox -s benchmarks`; no tests."""
