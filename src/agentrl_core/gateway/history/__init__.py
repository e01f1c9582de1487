"""Keep each session's finished calls and build new prompts from the exact token ids that were sampled before."""
