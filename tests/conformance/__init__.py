"""Checks of the gateway and of agentrl's tools by what others specify: `nox -s conformance`."""
