"""Maintenance of checkpoints and tables beside the batches: the janitor, checks, and commands that change logs."""
