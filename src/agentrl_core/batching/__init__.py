"""From scored groups to training rows: credit, advantages, filters, packing."""
