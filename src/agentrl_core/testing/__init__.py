"""The kit that proves plugins: suites, doubles, checks."""
