"""Inference engines: sample tokens with log-probabilities and policy versions, in this process or on a model server."""
