"""The studies of a run: `rows(run, settings)` of a module gives its rows of `numbers`."""
