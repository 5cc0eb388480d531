"""Model entries, metadata of models on the hub, proposals for new entries, the watch for new
releases."""
