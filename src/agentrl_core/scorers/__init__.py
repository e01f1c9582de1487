"""Built-in scorers; the lookup of scorers by name, and the calls that they get."""
