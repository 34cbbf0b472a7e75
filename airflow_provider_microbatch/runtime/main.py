"""The file that spark-submit is given. It is copied out of the package before the launch: if it lay beside the
runtime's other modules, its folder on ``sys.path`` would let them shadow modules of the user (``batch``, ``files``)."""

import sys

from airflow_provider_microbatch.runtime.app import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
