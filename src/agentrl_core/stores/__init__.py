"""Where runs, records and interactions are kept."""
