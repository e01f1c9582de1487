"""Train agents on task directories in Harbor's format: data set, tools in a sandbox, verifier."""
