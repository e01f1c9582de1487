"""HTTP: the server, its limits, the routes, and the client that reaches them in process."""
