"""Items, prompts, quality rules, card, review and release of a benchmark. Independent of models."""
