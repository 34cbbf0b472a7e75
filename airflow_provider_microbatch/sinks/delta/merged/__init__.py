"""A Delta table on a file system into which changes are merged: the newest state of each key, or all versions.

::

    <path>/microbatch/merged/…                              rows of the newest changes, which readers look at

(The rest of the folder: :mod:`airflow_provider_microbatch.sinks.merged`.)

A publish is one commit. It says that the batch is in, takes out the rows of the keys whose newest change is another one
now, and brings theirs in; and it names, by the application transaction ``microbatch/merged``, the record of the newest
changes that belongs to these rows. So rows, batches and newest changes are of one version whoever dies: what no version
names was never there.
"""
