"""Executors carry out requests, a process each: `Pool` on this machine, `Ray` and `Slurm` on clusters.


`Executor` is their protocol. A request is a frozen dataclass, as `Executable` describes. An executor hands the text of
`request_json(request)` to a worker. The worker finds the request's class in `worker.KINDS`, by an import path, and calls
its `carry_out`. It reports progress through `Lines`, a `runs.Listener`.
"""

from egalitarian.lab.executors.cluster import APART, LOST, Cluster, SharedRequest
from egalitarian.lab.executors.local import (
    BUSY,
    STOPPED,
    TIME_OVER,
    WORKER,
    Executable,
    Executor,
    Lines,
    Pool,
    process_environment,
    request_json,
)
from egalitarian.lab.executors.ray import Ray
from egalitarian.lab.executors.slurm import Slurm

__all__ = [
    "APART",
    "BUSY",
    "LOST",
    "STOPPED",
    "TIME_OVER",
    "WORKER",
    "Cluster",
    "Executable",
    "Executor",
    "Lines",
    "Pool",
    "Ray",
    "SharedRequest",
    "Slurm",
    "process_environment",
    "request_json",
]
