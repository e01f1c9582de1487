"""Stores: databases that keep the runs, records and interactions of an experiment."""
