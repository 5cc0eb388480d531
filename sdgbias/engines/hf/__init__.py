"""Models scored by transformers, in this process."""
