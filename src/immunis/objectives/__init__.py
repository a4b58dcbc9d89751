"""What a deep defence minimises, one objective per file; ``immunis.methods`` registers them."""
