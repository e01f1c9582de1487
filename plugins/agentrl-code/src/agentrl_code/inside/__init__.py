"""Code of the processes beside the trainer: the standard library alone, and nothing that a program may not see."""
