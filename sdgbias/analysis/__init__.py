"""Studies of stored scores, the papers' tables beside our results, and the self-check. Reads the
results file only; never runs a model."""
