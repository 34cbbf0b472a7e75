"""Names below a stage. The runtime writes them, and the sinks read them."""

MANIFEST = "_manifest"
"""A folder of one text file with one JSON object a line; it exists once the stage is complete."""

SCHEMA = "_schema"
"""The columns of a stage table, once Spark knows them: ``{"schema": …, "columns": [[name, type], …]}``."""

ERROR = "_error"
"""The reason of the job's failure, in the form of the manifest."""
