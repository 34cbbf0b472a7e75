"""The checkpoint: offset log, commit log and attempts, in Structured Streaming's own format."""
