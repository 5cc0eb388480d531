"""Raw folders read and checked, pictures drawn, synthetic samples made. Never knows a question."""
