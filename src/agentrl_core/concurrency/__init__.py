"""Threads and processes that user code can hang in without hanging the run, and locks between processes."""
