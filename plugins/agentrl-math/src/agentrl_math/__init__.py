"""Score mathematical answers by what they mean, with math-verify."""
