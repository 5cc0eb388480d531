"""Plan, score cache, scorer, worker pools, and the evaluation of one model on one benchmark."""
