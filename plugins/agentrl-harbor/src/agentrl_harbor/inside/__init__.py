"""Code of a local sandbox's own processes, run by a fresh interpreter that holds none of the trainer's data."""
