"""The file that spark-submit is given to run statements. It is copied out of the package before, as ``main`` is."""

import sys

from airflow_provider_microbatch.runtime.statements import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
