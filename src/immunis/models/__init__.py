"""A model cut into extractor and head, its stages, its weights."""
