"""What keeps checkpoints and tables in order beside the batches: the janitor, checks, and commands that change logs."""
