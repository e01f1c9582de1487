"""AReaL's `areal.experimental`: nothing of it is here, and its client says what does the same."""
