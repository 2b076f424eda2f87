"""Commands on a small file system that is full: `python -m tests.support.homes.full_disks SOURCE DISK LEFT COMMAND…`.

Runs in a mount namespace of its own (`unshare --mount`), so that the file system disappears with the process. Every
command meets a disk with LEFT free bytes. At the end there is space again, and the log is verified.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryFile

import orjson

MOUNT_ALLOWED = (
    subprocess.run(
        ["unshare", "--mount", "mount", "-t", "tmpfs", "none", "/mnt"], capture_output=True, check=False
    ).returncode
    == 0
)
_ROOM = 24 * 2**20


def main() -> None:
    """Run the commands, and print their words, exit codes and outputs as JSON."""
    from bardo_pipeline.storage.home import Home
    from bardo_pipeline.storage.verification.verify import verify
    from tests.support.records.writer_records import line

    source, disk, left, *commands = sys.argv[1:]
    size = sum(path.stat().st_size for path in Path(source).rglob("*") if path.is_file()) * 2 + _ROOM
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "none", disk], check=True)
    home = Path(disk) / "home"
    shutil.copytree(source, home)
    results = []
    for words in commands:
        (home / "spool" / "a.jsonl").write_bytes(b"\n".join([*(line(tick) for tick in range(1, 400)), b"no record"]))
        filler = Path(disk) / "filler"
        fill(filler, int(left))
        results.append((words, *command(home, words.split())))
        filler.unlink()
    assert verify(Home.open(home)).clean, "the log is clean"
    print(orjson.dumps(results).decode())


def fill(path: Path, left: int) -> None:
    """Write a file that leaves this number of bytes, in whole pages, free on its disk."""
    with path.open("wb", buffering=0) as file, suppress(OSError):
        while file.write(bytes(2**16)):
            pass
        while file.write(bytes(4_096)):
            pass
    os.truncate(path, path.stat().st_size - left)


def command(home: Path, words: list[str]) -> tuple[int, str]:
    """Run `bardo` in a child process; return its exit code and its output."""
    from tests.support.processes.bardo_command import command as become

    with TemporaryFile(dir="/dev/shm") as output:
        child = os.fork()
        if child == 0:
            os.environ |= {"BARDO_HOME": str(home), "COLUMNS": "300", "TMPDIR": "/dev/shm"}
            os.dup2(output.fileno(), 1)
            os.dup2(output.fileno(), 2)
            code = 70
            try:
                become(*words)
                code = 0
            except SystemExit as exit:
                code = exit.code if isinstance(exit.code, int) else 0
            except BaseException:
                import traceback

                traceback.print_exc()
            finally:
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(code)
        status = os.waitpid(child, 0)[1]
        output.seek(0)
        return os.waitstatus_to_exitcode(status), output.read().decode(errors="replace")


if __name__ == "__main__":
    main()
