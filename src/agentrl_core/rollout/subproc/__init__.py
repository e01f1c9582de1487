"""Episodes in processes of their own, of this interpreter or of another; see `resolving` and `pool`."""
