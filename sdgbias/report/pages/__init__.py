"""One module per page: its data from the store, and its rendering."""
