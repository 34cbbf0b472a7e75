"""Metadata of this package for Airflow's ProvidersManager, in the form of ``airflow/provider_info.schema.json``."""

from __future__ import annotations

from typing import Any

from airflow_provider_microbatch import __version__

_INTEGRATION = "Spark micro-batch"
_PACKAGE = "airflow_provider_microbatch"


def get_provider_info() -> dict[str, Any]:
    """Entry point ``apache_airflow_provider``. The metadata does not name the plugin: Airflow finds the plugin by the
    entry point ``airflow.plugins``. A plugin named in both places is registered twice, which Airflow reports as an
    error."""
    return {
        "package-name": "airflow-provider-microbatch",
        "name": "Spark micro-batch",
        "description": (
            "Micro-batches of `Apache Spark <https://spark.apache.org/>`__ with the guarantees of Structured "
            "Streaming, each of them one Airflow task run."
        ),
        "versions": [__version__],
        "integrations": [
            {
                "integration-name": _INTEGRATION,
                "external-doc-url": "https://spark.apache.org/docs/latest/streaming/index.html",
                "tags": ["apache"],
            }
        ],
        "operators": [
            {
                "integration-name": _INTEGRATION,
                "python-modules": [
                    f"{_PACKAGE}.operators.compact",
                    f"{_PACKAGE}.operators.drain",
                    f"{_PACKAGE}.operators.janitor",
                    f"{_PACKAGE}.operators.job",
                    f"{_PACKAGE}.operators.job_status",
                    f"{_PACKAGE}.operators.micro_batch",
                    f"{_PACKAGE}.operators.steps",
                    f"{_PACKAGE}.operators.tables",
                ],
            }
        ],
        "sensors": [
            {
                "integration-name": _INTEGRATION,
                "python-modules": [f"{_PACKAGE}.sensors.job_data", f"{_PACKAGE}.sensors.new_data"],
            }
        ],
        "triggers": [
            {
                "integration-name": _INTEGRATION,
                "python-modules": [f"{_PACKAGE}.triggers.job_data", f"{_PACKAGE}.triggers.new_data"],
            }
        ],
        "task-decorators": [
            {"name": "micro_batch", "class-name": f"{_PACKAGE}.decorators.micro_batch.micro_batch_task"},
        ],
        "config": {
            "microbatch": {
                "description": "Spark micro-batches: whom they trust, and who may look at their state.",
                "options": {
                    "trusted_modules": {
                        "description": (
                            "Modules, or packages with all below them, separated by commas, whose sources, sinks and "
                            "hooks the janitor and the triggerer may load because a checkpoint or a trigger names them."
                        ),
                        "version_added": __version__,
                        "type": "string",
                        "example": "acme.microbatch_hooks,acme.sinks",
                        "default": "",
                    },
                    "trusted_servers": {
                        "description": (
                            "Addresses of Spark Connect servers, separated by commas, that the janitor and the "
                            "microbatch command may speak to because a checkpoint names them; each as in the pipeline."
                        ),
                        "version_added": __version__,
                        "type": "string",
                        "example": "sc://spark:15002",
                        "default": "",
                    },
                    "group_access": {
                        "description": (
                            "What the group of their folder may do with checkpoints and stages: none, read or write."
                        ),
                        "version_added": __version__,
                        "type": "string",
                        "example": "read",
                        "default": "none",
                    },
                },
            }
        },
    }
