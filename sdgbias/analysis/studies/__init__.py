"""One study per module: `rows(run, settings)` returns its rows of `study_rows`."""
