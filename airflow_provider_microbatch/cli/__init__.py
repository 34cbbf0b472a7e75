"""The ``microbatch`` command."""
