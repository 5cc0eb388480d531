"""W&B runs, artifacts and the team report, built from the store."""
