"""Tool-call parsers: from what a model wrote to the calls it meant."""
