"""Runs whose members are killed at random, and the checks that nothing is lost or trained twice."""
