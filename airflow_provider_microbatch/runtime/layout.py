"""Names below a stage on which the runtime, which writes them, and the sinks, which read them, agree."""

MANIFEST = "_manifest"
"""The stage is complete: a folder of one text file with one JSON object a line."""

SCHEMA = "_schema"
"""The columns of a stage table, once Spark knows them: ``{"schema": …, "columns": [[name, type], …]}``."""

ERROR = "_error"
"""Why the job failed, in the same form."""
