"""One study a module: `rows(run, settings)` gives its rows of `study_rows`."""
