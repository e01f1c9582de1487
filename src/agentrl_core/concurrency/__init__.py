"""Threads and worker processes that user code may hang in, wake-ups across event loops, and secrets kept from them."""

FILE_MODULE = "agentrl_file_"
"""Prefix of the names of modules that `plugins.references` reads from files: no other process can import them."""
