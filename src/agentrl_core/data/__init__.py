"""Tasks from files, and answers from replies."""
