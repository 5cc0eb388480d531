"""Items, prompts, quality rules, card, review and release of a benchmark. Never knows a model."""
