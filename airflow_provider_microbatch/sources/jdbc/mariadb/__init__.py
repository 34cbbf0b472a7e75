"""Tables of MariaDB: planned by PyMySQL, read by Spark's JDBC source with MariaDB's driver. InnoDB tells nobody which
transaction wrote a row, only which transactions run: nothing here is like PostgreSQL's snapshots."""
