"""Score programs by unit tests, in a sandbox that keeps the tests apart from the program."""
