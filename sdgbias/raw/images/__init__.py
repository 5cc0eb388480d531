"""Pictures: tiles and photos read, drawn once, kept by content."""
