"""Train on servers of OpenEnv and NeMo Gym, by their protocols; neither package is needed."""
