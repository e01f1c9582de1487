"""Parts of the token trie's benchmark: cases, trainers and growth with the number of tokens."""
