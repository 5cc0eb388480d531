"""The web application over the results."""
