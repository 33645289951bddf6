"""Disks for one test each: a file system in a file, mounted by a loop device within a mount
namespace of its own. A process holds that namespace, and ends with whoever made it: then nothing of
it is left, whatever happened to the test. From outside it is seen at /proc/PID/root."""

import ctypes
import errno
import fcntl
import hashlib
import os
import pathlib
import shlex
import shutil
import signal
import struct
import subprocess
import time

import directory_locks

MIB = 1 << 20
KINDS = ("ext4", "xfs", "btrfs")
LEAST_MIB = {"ext4": 160, "xfs": 320, "btrfs": 256}
PACKAGES = {"ext4": "e2fsprogs", "xfs": "xfsprogs", "btrfs": "btrfs-progs"}
FS_IOC_GETFLAGS, FS_IOC_SETFLAGS, IMMUTABLE = 0x80086601, 0x40086602, 0x10
IOC_SHUTDOWN = 0x8004587D  # EXT4_IOC_SHUTDOWN and XFS_IOC_GOINGDOWN
FLUSH, NO_LOG_FLUSH = 1, 2
LATE_S = 3  # what the kernel gives back after a process has ended, it gives back within this


class Unavailable(Exception):
    """Why this machine has no such disk."""


def tried(command, **options):
    """Runs a command that sets the scene up."""
    if shutil.which(str(command[0])) is None:
        raise Unavailable(f"no {command[0]}")
    done = subprocess.run([str(each) for each in command], capture_output=True, text=True,
                          timeout=60, **options)
    if done.returncode != 0:
        words = (done.stderr or done.stdout).strip().partition("\n")[0]
        raise Unavailable(f"{shlex.join(map(str, command))}: {words}")
    return done.stdout


class Disk:
    """`path` is where jobs in the namespace find it, `seen` the same folder from outside."""

    def __init__(self, folder, kind, mib=None, options=(), make=(), beside=None):
        """`beside`: another one, in whose namespace this is mounted too."""
        if os.geteuid() != 0:
            raise Unavailable("only root may mount")
        if shutil.which(f"mkfs.{kind}") is None:
            raise Unavailable(f"no mkfs.{kind} (Debian's {PACKAGES[kind]})")
        self.kind, self.folder, self.holder = kind, pathlib.Path(folder), None
        self.image, self.path = self.folder / "image", self.folder / "disk"
        self.path.mkdir()
        with open(self.image, "wb") as file:
            file.truncate(max(mib or 0, LEAST_MIB[kind]) * MIB)
        quiet = {"ext4": ["-q", "-m", "0", "-E", "lazy_itable_init=0"], "xfs": ["-q"],
                 "btrfs": ["-q", "-m", "single"]}
        tried([f"mkfs.{kind}", *quiet[kind], *make, self.image])
        self.holder, self.borrowed = beside.holder if beside else self.hold(), bool(beside)
        self.options = ",".join(["loop", *options])
        try:
            self.mount()
        except Unavailable:
            self.close()
            raise
        self.seen = pathlib.Path(f"/proc/{self.holder.pid}/root{self.path}")
        self.spill, self.data = self.seen / "spill", self.seen / "data"
        self.spill.mkdir(mode=0o700)
        self.data.mkdir()
        for number in range(4):
            (self.data / f"file-{number}").write_bytes(os.urandom(128 << 10))
        (self.spill.parent / "beside").write_bytes(b"beside the spill directory")
        self.sync()
        self.user_files = self.hashes()
        self.free_at_first = self.free_bytes()

    @staticmethod
    def hold():
        """It says "held" once it is in a namespace of its own, and ends with its standard input."""
        holder = subprocess.Popen(
            ["unshare", "--mount", "--propagation", "private", "sh", "-c", "echo held; exec cat"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True)
        if holder.stdout.readline() == "held\n":
            return holder
        holder.communicate()
        raise Unavailable("no mount namespace of its own (unshare --mount)")

    def mount(self):
        self.inside(["mount", "-t", self.kind, "-o", self.options, self.image, self.path])

    def mount_again(self):
        """As after the machine has come up again. (io_uring's threads of a process that has ended
        may hold it for a moment.)"""
        end = time.monotonic() + LATE_S
        while True:
            try:
                self.inside(["umount", self.path])
                break
            except Unavailable:
                assert time.monotonic() < end, "the file system is held still"
                time.sleep(0.02)
        self.mount()

    def prefix(self):
        return ["nsenter", f"--mount=/proc/{self.holder.pid}/ns/mnt", "--"]

    def inside(self, command):
        return tried([*self.prefix(), *command])

    def spill_path(self):
        """As a job names it."""
        return self.path / "spill"

    def close(self):
        if self.holder is not None and not self.borrowed:
            self.holder.kill()
            self.holder.communicate()
        self.holder = None
        self.image.unlink(missing_ok=True)

    def sync(self):
        fd = os.open(self.seen, os.O_RDONLY)
        try:
            if ctypes.CDLL(None, use_errno=True).syncfs(fd) != 0:
                raise OSError(ctypes.get_errno(), "syncfs")
        finally:
            os.close(fd)

    def hashes(self):
        return {path.name: hashlib.sha256(path.read_bytes()).hexdigest()
                for path in sorted(self.seen.rglob("*"))
                if path.is_file() and path.name != "filler"}

    def free_bytes(self):
        status = os.statvfs(self.seen)
        return status.f_bfree * status.f_frsize

    def fill(self, leave=0):
        """Takes all room but so much."""
        filler = os.open(self.seen / "filler", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            size, step = os.fstat(filler).st_size, 64 * MIB
            while step >= 16 << 10:
                room = self.free_bytes() - leave
                if room < step:
                    step //= 2
                    continue
                try:
                    os.posix_fallocate(filler, size, step)
                    size += step
                except OSError as error:
                    if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                        raise
                    step //= 2
        finally:
            os.close(filler)

    def come_free(self):
        (self.seen / "filler").unlink()
        self.sync()

    def shut_down(self, how=NO_LOG_FLUSH):
        """As after a failed write of the journal: EIO from here on."""
        fd = os.open(self.seen, os.O_RDONLY)
        try:
            fcntl.ioctl(fd, IOC_SHUTDOWN, struct.pack("I", how))
        except OSError as error:
            raise Unavailable(f"this {self.kind} cannot be shut down: {error}") from error
        finally:
            os.close(fd)

    def remount(self, words):
        self.inside(["mount", "-o", f"remount,{words}", self.path])

    def in_flight(self):
        number = os.stat(self.seen).st_dev
        name = f"/sys/dev/block/{os.major(number)}:{os.minor(number)}/inflight"
        try:
            return sum(map(int, pathlib.Path(name).read_text().split()))
        except OSError:
            return 0


def set_immutable(folder, on):
    """chattr +i or -i."""
    fd = os.open(folder, os.O_RDONLY)
    try:
        flags = struct.unpack("l", fcntl.ioctl(fd, FS_IOC_GETFLAGS, bytes(8)))[0]
        flags = flags | IMMUTABLE if on else flags & ~IMMUTABLE
        fcntl.ioctl(fd, FS_IOC_SETFLAGS, struct.pack("l", flags))
    except OSError as error:
        raise Unavailable(f"no immutable directories here: {error}") from error
    finally:
        os.close(fd)


def check_clean(disk, process="a process", tolerance=64 << 10):
    """What a job must leave of itself, however it ended: no file, no lock, no room that is taken,
    and other files as they were."""
    assert list(disk.spill.iterdir()) == [], f"files are left by {process}"
    end = time.monotonic() + LATE_S
    # io_uring's own threads of a process end a moment after it.
    while directory_locks.locked(disk.spill):
        assert time.monotonic() < end, f"{process} is a neighbour still"
        time.sleep(0.002)
    while (room := disk.free_bytes()) + tolerance < disk.free_at_first:
        assert time.monotonic() < end, (
            f"{process} keeps {disk.free_at_first - room} bytes of the disk")
        time.sleep(0.01)
    assert disk.hashes() == disk.user_files, f"files of others changed by {process}"


def kept_by(pid, disk):
    """What that process has open, mapped or locked in memory of Firn's."""
    proc, kept = pathlib.Path(f"/proc/{pid}"), []
    for each in (proc / "fd").iterdir():
        try:
            at = os.readlink(each)
        except OSError:
            continue
        if str(disk.path) in at or "io_uring" in at or "eventfd" in at:
            kept.append(f"descriptor {each.name}: {at}")
    for line in (proc / "maps").read_text().splitlines():
        if str(disk.path) in line or "io_uring" in line:
            kept.append(line)
    for line in (proc / "status").read_text().splitlines():
        if line.startswith(("VmLck:", "VmPin:")) and line.split()[1] != "0":
            kept.append(line)
    return kept


def end(pid):
    """A process that a job has left on purpose."""
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
