"""Running agents on tasks: episodes, groups, capacity."""
