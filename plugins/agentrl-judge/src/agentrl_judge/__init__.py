"""Language models as scorers: whether an answer is right, where comparing texts cannot tell."""
