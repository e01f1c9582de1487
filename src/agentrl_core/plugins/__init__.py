"""How packages plug in: hook specifications, discovery, the manager that loads them and the registry of components."""
