"""Input data: tasks and demonstrations from JSONL files, answers extracted from replies, exports of episodes."""
