"""Results that grow: what there is, how long the details of a run are kept, clearing up, backup, checking.

Everything here works on the results file and the Parquet files that belong to it; nothing of it changes a metric.
"""
