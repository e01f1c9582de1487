"""What adapters of agent frameworks have in common: clients that lead to the episode, objects that are called."""
