"""Raw inputs: what is there, where it comes from, how it is versioned."""
