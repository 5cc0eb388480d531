"""Studies of stored scores, the papers' tables beside ours, and the self-check. Reads results;
never asks a model."""
