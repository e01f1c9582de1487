"""The HTTP front that agents talk to, and the ledger of what they sampled."""
