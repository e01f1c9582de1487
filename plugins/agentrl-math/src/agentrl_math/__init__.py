"""Scorer for mathematical answers, which compares their meaning with math-verify."""
