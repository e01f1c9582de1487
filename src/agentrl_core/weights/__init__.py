"""Policy versions and how weights travel."""
