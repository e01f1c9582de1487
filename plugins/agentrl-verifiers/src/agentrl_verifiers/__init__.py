"""Train on environments of verifiers; only `dataset` runs in the interpreter of the run."""
