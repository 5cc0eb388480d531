"""The benchmark authors' formats: prediction tables, and benchmarks as JSONL and images."""
