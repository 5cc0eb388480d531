"""One page a module: what it shows, from what is stored."""
