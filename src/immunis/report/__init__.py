"""Records as tables, text, figures, cards and released folders."""
