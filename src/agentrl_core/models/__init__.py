"""Model directories: check and load them, and build tiny models with random weights."""
