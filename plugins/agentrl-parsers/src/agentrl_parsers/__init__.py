"""Parsers of the tool-call formats of Mistral, DeepSeek, Kimi, MiniCPM, GLM and gpt-oss models."""
