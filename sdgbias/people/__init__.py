"""Pictures of people with annotated, perceived attributes: what the second suite asks about (Wu et al., FACET)."""
