"""Turn scored groups into packed training samples: shaping, credit, advantages, filters, token trie, packing."""
