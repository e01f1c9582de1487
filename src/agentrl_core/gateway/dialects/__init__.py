"""Translate the LLM APIs that agents use: one `Dialect` per API, from and to the types of `call_types`."""
