"""Event-driven simulation of sampling and training on a GPU cluster, for the benchmark `async`."""
