"""Array methods: CADE, baselines, search, statistics. Arrays in, arrays out; no files, no
models."""
