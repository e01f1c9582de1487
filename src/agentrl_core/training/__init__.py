"""Train the policy on scored groups or demonstrations: optimizer steps, fine-tuning, checkpoints."""
