"""Sample plugin package without faults."""
