"""Samplers that only use the store, for the benchmark `store`."""
