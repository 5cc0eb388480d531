"""Suites: what is asked and what is concluded from the scores. A suite never sees a model."""
