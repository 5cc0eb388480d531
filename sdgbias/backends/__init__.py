"""Engines that score prompts. Only this package imports torch or transformers."""
