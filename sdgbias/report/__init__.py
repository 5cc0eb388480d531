"""Pages, charts, the web application and W&B. Reads the store; never writes a result.

* build: every page of the static report
* layout, labels, contents, headlines: pages and words that all fronts share, and what the
  terminal shows
* source, data: reading the results, for the web application and for the report
* leaderboard, matrix: numbers of every model, over nights and beside each other
* pages, charts: a module per page, and its figures
* web: the application of `sdgbias serve`
* publish: the formats of others
* wandb: W&B runs, artifacts and the team report
"""
