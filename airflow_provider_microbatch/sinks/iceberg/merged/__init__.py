"""An Iceberg table on a file system into which changes are merged: the newest state of each key, or all versions.

::

    <path>/microbatch/merged/…                              rows of the newest changes, which readers look at

(The rest of the folder: :mod:`airflow_provider_microbatch.sinks.merged`.)

A publish is one snapshot of the branch ``main``. It takes out the rows of the keys whose newest change is another one
now, and brings theirs in; and the commit names, by the property ``microbatch.merged``, the record of the newest changes
that belongs to these rows, with the snapshot. The property stays where a branch is put back: that the branch has the
snapshot which the property names tells that the rows are still those of the record.
"""
