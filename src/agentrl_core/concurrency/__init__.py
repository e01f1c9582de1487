"""Threads and processes that user code can hang in without hanging the run, and locks between processes."""

FILE_MODULE = "agentrl_file_"
"""Prefix of the names of modules that `plugins.references` reads from files: no other process can import them."""
