"""Plan, score cache, scorer, and the evaluation of one model on one benchmark.

* plan, cache, scorer: distinct prompts, what is known of them, and asking the rest
* evaluate, session, run_id: one model on one benchmark, from the plan to the published run; what of
  it the engine is asked; the id of the run
* probes, parity, admission: a fixed set of prompts, two engines on it, and a new model on it
* cost, timing: what scoring takes, before and after
"""
