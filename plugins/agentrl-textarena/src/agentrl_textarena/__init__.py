"""Train on the games of TextArena."""
