"""Clients that are programs of their own, in other languages or environments, against the gateway: `nox -s clients`."""
