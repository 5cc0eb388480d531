"""Pages, charts, the web application and W&B. Reads the store; never writes a result."""
