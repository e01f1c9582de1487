"""The APIs that agents speak: one dialect each, from and to the values of `exchange`."""
