"""Data files: tasks and demonstrations read from JSONL, and exports of stored episodes as demonstrations."""
