"""Pages, charts, the web application and W&B. Reads the store; never writes a result.

* build: every page of the static report
* layout, leans, contents, headlines: pages and words that all fronts share, and what the
  terminal shows
* reader: what pages ask of the results, by the statements of data/pages.sql and data/figures.sql
* leaderboard, matrix: numbers of every model, over nights and beside each other
* pages, charts: a module per page, and its figures
* web: the application of `sdgbias serve`, and the pages that it keeps
* publish: the formats of others
* wandb: W&B runs, artifacts and the team report
"""
