"""HTTP side of the gateway: server, connection limits, routes, and a client that reaches the routes in process."""
