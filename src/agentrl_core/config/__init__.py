"""A run's config: YAML and overrides structured into attrs classes."""
