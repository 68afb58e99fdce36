"""The session's folder on a local disk."""

from __future__ import annotations

import os
import re
import shutil
import socket
import tempfile
from pathlib import Path

from bench.supervisor.processes import ProcessKey, own_key

_NAME = re.compile(r"ftbench-(?P<host>.+)-rank\d+-(?P<pid>\d+)-(?P<started>\d+)-[^-]+")


def make_home(scratch: Path, rank: int) -> Path:
    """Makes a private folder for this supervisor and removes those of supervisors that were killed.

    Args:
        scratch: Folder that may be shared with other ranks and hosts.
        rank: Rank in the session.
    """
    scratch.mkdir(parents=True, exist_ok=True)
    host = socket.gethostname()
    for path in scratch.glob("ftbench-*"):
        match = _NAME.fullmatch(path.name)
        # The name holds the start time too: a pid alone may belong to somebody else by now.
        if match and match["host"] == host and not ProcessKey(int(match["pid"]), match["started"]).alive():
            shutil.rmtree(path, ignore_errors=True)
    started = own_key().started
    return Path(tempfile.mkdtemp(prefix=f"ftbench-{host}-rank{rank}-{os.getpid()}-{started}-", dir=scratch)).resolve()
