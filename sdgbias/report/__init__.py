"""The nightly report: a self-contained HTML page and an offline W&B run. Reads the results file and nothing else."""
