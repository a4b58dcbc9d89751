"""What an attacker does with a released extractor, one attack per file."""
