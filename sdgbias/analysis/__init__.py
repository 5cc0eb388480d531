"""Studies of stored scores, the papers' tables beside our results, and the self-check. Reads the
results file only; never runs a model.

* run, outcomes: a run as arrays, and its answers
* rows, calls: the rows of studies, and how calls of `stats.measure` become them
* analyse, studies: every study of a run
* paper: the papers' tables and figures
* selfcheck: planted effects must be measured
* nights, night_text: the outcome of a night, and its sentences
"""
