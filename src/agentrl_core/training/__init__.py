"""The learner: optimizer steps, warm start, checkpoints."""
