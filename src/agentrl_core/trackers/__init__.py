"""Trackers: receivers of a run's metrics and events, such as the terminal, a JSONL file and a reward curve."""
