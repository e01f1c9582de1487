"""LLM judges: score answers by asking language models, where a comparison of texts cannot tell right from wrong."""
