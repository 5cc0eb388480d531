"""The gate: a run against the last good run of its model, rule by rule, and who is told.

policy     what counts as a breach, read from a file
measured   what a run measures on each question, and the questions of two runs side by side
places     suite sdg: accuracy, signatures, disparity, parse failures, candidate mass
people     suite facet: recall, disparity, refusals, parse failures, candidate mass
runs       which runs are judged, and the last good run of each
judge      evidence of every rule, and its verdict
flips      questions whose answer turned from right to wrong or back
announce   a message about a night to a webhook
"""

from __future__ import annotations
