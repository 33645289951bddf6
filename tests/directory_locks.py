"""The locks by which Firn's processes count themselves in a directory for spilling.

(/proc/locks is no help: it is read in pieces while other locks come and go, it leaves out the
processes of other namespaces, and some file systems show inodes there that stat does not.)
"""

import fcntl
import os
import pathlib
import struct


def locked(folder):
    """Does anybody hold a lock of that directory?"""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        asked = struct.pack("hhqqixxxx", fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
        answer = struct.unpack("hhqqixxxx", fcntl.fcntl(fd, fcntl.F_OFD_GETLK, asked))
        return answer[0] != fcntl.F_UNLCK
    finally:
        os.close(fd)


def locked_by(pid, folder):
    """Does that process hold one, by a descriptor of its own?"""
    for each in pathlib.Path(f"/proc/{pid}/fd").iterdir():
        try:
            if not os.path.samefile(each, folder):
                continue
            told = pathlib.Path(f"/proc/{pid}/fdinfo/{each.name}").read_text()
        except FileNotFoundError:  # closed meanwhile
            continue
        if any(line.startswith("lock:") for line in told.splitlines()):
            return True
    return False
