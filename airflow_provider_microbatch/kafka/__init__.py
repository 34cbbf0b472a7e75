"""Kafka clusters: how one is reached, and the questions to it that sources and sinks share."""
