"""The source, broken on purpose one place at a time: the tests must tell. Run by `nox -s mutations`; no tests."""
