"""Model entries, what the hub says of a model, proposals for new entries, the watch for new
releases."""
