"""Attacks x models x seeds, and what may be said of the outcome."""
