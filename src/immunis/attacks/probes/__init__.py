"""Probes of frozen features."""
