"""Every table and figure of the paper from the results file: ours beside the printed value, where the same model was scored."""
