"""Attackers who know the defence."""
