"""A Delta table on a file system into which changes are merged: the newest state of each key, or all versions.

::

    <path>/microbatch/merged/…                              rows of the newest changes, which readers look at
    <path>/_microbatch/changes/live/7/<number>/…            the changes of batch 7, as Spark has written them
    <path>/_microbatch/newest/12-….parquet                  newest changes of keys, whole, and deletions among them
    <path>/_microbatch/newest/12.<number>.json              the files that have them as of version 12

A publish is one commit. It says that the batch is in, takes out the rows of the keys whose newest change is another one
now, and brings theirs in; and it names, by the application transaction ``microbatch/merged``, the record of the newest
changes that belongs to these rows. So rows, batches and newest changes are of one version whoever dies: what no version
names was never there.

The newest changes say which change of a batch wins, also over a deletion. The changes of each batch are there for a
replay or a withdrawal: a key whose newest change goes out with its batch gets the newest one that is left.
"""
