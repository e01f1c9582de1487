"""The parts of the trie's benchmark: what is trained, by whom, and how it grows with the tokens."""
