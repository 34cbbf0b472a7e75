"""Systems that a third party's package brings: sources, a sink, a store, an engine and statements."""
