"""Plan, score cache, scorer, workers, and the evaluation of one model on one benchmark."""
