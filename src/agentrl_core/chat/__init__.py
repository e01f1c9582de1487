"""Between messages and token ids: template, tokenizer, parsers."""
