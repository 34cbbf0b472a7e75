"""Systems that somebody else brings."""
