"""What a session said before, and how a prompt goes on from its exact ids."""
