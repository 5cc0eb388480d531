"""Images: tiles and photos are read, rendered once, and stored by content."""
