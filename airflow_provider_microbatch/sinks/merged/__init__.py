"""What tables of files into which changes are merged have in common, whoever keeps their log: Delta and Iceberg.

::

    <path>/_microbatch/changes/live/7/<number>/…            the changes of batch 7, as Spark has written them
    <path>/_microbatch/newest/12-….parquet                  newest changes of keys, whole, and deletions among them
    <path>/_microbatch/newest/12.<number>.json              the files that have them as of version 12

The newest changes say which change of a batch wins, also over a deletion. The changes of each batch are there for a
replay or a withdrawal: a key whose newest change goes out with its batch gets the newest one that is left. Which record
of the newest changes counts, the commit says that its rows come with.
"""
