"""Which models run tonight, their retries and quarantine, regression checks. Never
imports Prefect.

* night_options, plan, schedule: who is due, when, and whether anything changed
* run, attempt, process, supervisor: the night, one model of it, one command
* prefect_server: the server of a night, a process beside it
* gpus, weights: the GPUs and the files that models run with
* records, quarantine: the record of nights, and models that failed
* steps, regression, notify: analysis, regression checks and the message at the end
* watch: releases on the hub become candidates and are tried
"""
