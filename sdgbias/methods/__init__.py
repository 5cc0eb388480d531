"""Array methods: CADE, baselines, search, statistics. Arrays in, arrays out; no files, no
models.

* cade, bounds: CADE itself, and its answers where scores are withheld
* baselines: debiasing methods from the literature
* protocol, tuning, search: how free parameters are chosen on validation rows
* answers, labels: from text to numbers and to labels
* lean, metrics: which way answers go, and how many are right
* stats: intervals, paired tests, resampling, groups
* compiled: kernels compiled ahead, for numba's cache

For logits of one's own: ``from sdgbias.methods import cade``.
"""
