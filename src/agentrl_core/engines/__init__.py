"""Inference engines: token ids in, token ids with logprobs out."""
