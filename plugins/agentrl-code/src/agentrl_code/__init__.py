"""Score programs with unit tests, in sandboxes that never hold the expected results."""
