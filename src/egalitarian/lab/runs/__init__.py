"""Runs: what to train (`Request`), training with checkpoints (`sweep`), `Store`, `Evidence`, `Outcome`.

A run is one seed of one method of one experiment. It survives kills and resumes where its last checkpoint is. The files of
a run are described in `store.py`.
"""

from egalitarian.lab.config import Record
from egalitarian.lab.runs.evidence import Evidence, Packed, Source, StoredRun, open_source
from egalitarian.lab.runs.files import (
    OTHER_FOLDER,
    Checkpoint,
    LockedError,
    StoreError,
    message_of,
    writable,
    write_atomically,
)
from egalitarian.lab.runs.outcome import (
    Interrupted,
    Listener,
    Outcome,
    Progress,
    Reads,
    Silent,
    Stop,
    epoch_text,
    threshold_text,
    training_seconds,
)
from egalitarian.lab.runs.packing import Packing, Written, pack
from egalitarian.lab.runs.provenance import CONCURRENT, TimeSpent, environment, hardware, source
from egalitarian.lab.runs.recordings import RunRecording, recordings_in
from egalitarian.lab.runs.request import (
    Request,
    choose_device,
    configure_process,
    named_device,
    stored_progress,
    train_requests,
    unfinished,
)
from egalitarian.lab.runs.store import Store, Stored
from egalitarian.lab.runs.sweeps import Watch, interrupts, meter_of, restore, states_of, sweep, try_step

__all__ = [
    "CONCURRENT",
    "OTHER_FOLDER",
    "Checkpoint",
    "Evidence",
    "Interrupted",
    "Listener",
    "LockedError",
    "Outcome",
    "Packed",
    "Packing",
    "Progress",
    "Reads",
    "Record",
    "Request",
    "RunRecording",
    "Silent",
    "Source",
    "Stop",
    "Store",
    "StoreError",
    "Stored",
    "StoredRun",
    "TimeSpent",
    "Watch",
    "Written",
    "choose_device",
    "configure_process",
    "environment",
    "epoch_text",
    "hardware",
    "interrupts",
    "message_of",
    "meter_of",
    "named_device",
    "open_source",
    "pack",
    "recordings_in",
    "restore",
    "source",
    "states_of",
    "stored_progress",
    "sweep",
    "threshold_text",
    "train_requests",
    "training_seconds",
    "try_step",
    "unfinished",
    "writable",
    "write_atomically",
]
