"""Features read elsewhere than the defence expects."""
