"""Workers and threads pack alike, in order; an error in a worker is the caller's error."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tasks.architectures import architecture_of
from tasks.checkpoint.files import CheckpointFiles
from tasks.errors import BadInputError
from tasks.requant import parallel
from tasks.requant.head import DraftSource
from tests import exports

GROUPS = [
    ("mtp.layers.0.mlp.experts.1.gate_proj", "mtp.layers.0.mlp.experts.1.up_proj"),
    *((f"mtp.layers.0.mlp.experts.{number}.down_proj",) for number in range(8)),
]
BARE = """
import hashlib, json, os, sys
from pathlib import Path
os.sched_getaffinity = lambda pid: set(range(int(sys.argv[2])))
from tasks.architectures import architecture_of
from tasks.checkpoint.files import CheckpointFiles
from tasks.requant import parallel
from tasks.requant.head import DraftSource
assert parallel.may_fork()
files = CheckpointFiles.open(Path(sys.argv[1]), as_source=True)
head = DraftSource(files, architecture_of(files.config, "test"))
groups = [tuple(group) for group in json.loads(sys.argv[3])]
digest = hashlib.sha256()
for group in parallel.packed_groups(head, groups):
    for name, packed in group:
        digest.update(name.encode())
        for part in packed:
            digest.update(part.tobytes())
print(digest.hexdigest())
"""


def _digest(cores: int) -> str:
    arguments = [str(exports.source()), str(cores), json.dumps(GROUPS)]
    done = subprocess.run(
        [sys.executable, "-c", BARE, *arguments], capture_output=True, text=True, check=True
    )
    return done.stdout


def test_workers_and_threads_give_the_same_bytes_in_the_same_order() -> None:
    assert _digest(1) == _digest(2) == _digest(4)


def test_a_process_with_torch_is_never_forked() -> None:
    import torch

    assert torch and not parallel.may_fork()


def test_an_error_in_a_worker_is_the_caller_s(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parallel, "may_fork", lambda: True)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1, 2})
    files = CheckpointFiles.open(exports.source(), as_source=True)
    head = DraftSource(files, architecture_of(files.config, "test"))
    monkeypatch.setattr(DraftSource, "weight", lambda self, name: files.array("mtp.fc.weight") * 0)
    with pytest.raises(BadInputError) as error:
        list(parallel.packed_groups(head, GROUPS))
    assert error.value.code == "weight-zero"
