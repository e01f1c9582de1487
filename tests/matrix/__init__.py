"""Test matrix of the gateway: every supported client library in every difficult case."""
