"""Tests on real clusters of Ray and Slurm, which run on this machine: `make test-cluster`."""

from __future__ import annotations

import getpass
import importlib.util
import os
import secrets
import shutil
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from clusters import free_port, output, started, wait_for

PROGRAMS = ("slurmctld", "slurmd", "munged", "squeue")


def pytest_sessionstart(session: pytest.Session) -> None:
    missing = [name for name in ("ray", "submitit") if importlib.util.find_spec(name) is None]
    missing += [name for name in PROGRAMS if shutil.which(name, path=os.environ["PATH"] + ":/usr/sbin") is None]
    if missing:
        raise pytest.UsageError(f"these tests need {', '.join(missing)}; run them with `make test-cluster`")


CONFIGURATION = """
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={controller}
SlurmdPort={node}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
MpiDefault=none
SwitchType=switch/none
ReturnToService=2
KillWait=20
MinJobAge=60
AccountingStorageType=accounting_storage/none
JobAcctGatherType=jobacct_gather/none
NodeName={host} NodeAddr=127.0.0.1 CPUs={cores} State=UNKNOWN
PartitionName=debug Nodes={host} Default=YES MaxTime=INFINITE State=UP
"""
"""One node, without cgroups and without accounting."""


@pytest.fixture(scope="session")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A Slurm of one node on this machine; commands find it by SLURM_CONF. The folder has its logs."""
    folder = tmp_path_factory.mktemp("slurm")
    for name in ("state", "spool"):
        (folder / name).mkdir()
    (folder / "munge.key").write_bytes(secrets.token_bytes(1024))
    (folder / "munge.key").chmod(0o600)
    values = {"controller": free_port(), "node": free_port(), "user": getpass.getuser(), "cores": os.cpu_count()}
    configuration = folder / "slurm.conf"
    configuration.write_text(CONFIGURATION.format(folder=folder, host=socket.gethostname().partition(".")[0], **values))
    with pytest.MonkeyPatch.context() as patch, ExitStack() as daemons:
        patch.setenv("SLURM_CONF", str(configuration))
        patch.setenv("PATH", os.environ["PATH"] + ":/usr/sbin")
        files = [f"--{name}={folder}/munge.{ending}" for name, ending in MUNGE.items()]
        for command in (
            ["munged", "--foreground", "--force", *files],
            ["slurmctld", "-D", "-f", str(configuration)],
            ["slurmd", "-D", "-f", str(configuration)],
        ):
            daemons.enter_context(started(folder / f"{command[0]}.log", *command))
            if command[0] == "munged":
                wait_for("munged", (folder / "munge.socket").exists)
        wait_for("an idle node", lambda: "idle" in output("sinfo", "--noheader", "--format=%T"))
        yield folder
        output("scancel", f"--user={getpass.getuser()}")
        wait_for("no job", lambda: not output("squeue", "--noheader"))


MUNGE = {"key-file": "key", "socket": "socket", "log-file": "log", "pid-file": "pid", "seed-file": "seed"}
