"""Which models run tonight, their retries and quarantine, regression checks, the local stack. Never
imports Prefect."""
