"""W&B runs, artifacts and the team report of what is stored."""
