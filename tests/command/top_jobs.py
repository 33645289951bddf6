"""Made-up jobs for tests of `firn top`, `firn stats` and `firn spill`."""

import contextlib
import json
import socket
import subprocess
import threading

import pytest


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Where this test's processes are. (Others of this user's may be seen elsewhere.)"""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    path = tmp_path / "firn"
    path.mkdir(mode=0o700)
    return path


@contextlib.contextmanager
def job(folder, answer, process=None):
    """A process's socket: `answer` (a text, a document that gets its number, or a function of the
    connection) to whoever asks. It is named after a process that lives."""
    living = subprocess.Popen(["sleep", "600"]) if process is None else None
    number = process or living.pid
    if isinstance(answer, dict):
        answer = json.dumps({**answer, "pid": number})
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(str(folder / f"{number}.sock"))
    listening.listen(8)

    def serve():
        while True:
            try:
                connected, _ = listening.accept()
            except OSError:
                return
            try:
                if callable(answer):
                    answer(connected)
                else:
                    connected.recv(100)
                    connected.sendall(answer.encode())
            except OSError:
                pass
            connected.close()

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield number
    finally:
        listening.shutdown(socket.SHUT_RDWR)
        thread.join()
        listening.close()
        (folder / f"{number}.sock").unlink(missing_ok=True)
        if living:
            living.kill()
            living.wait()


def document(spilled=0, **more):
    device = {"device": 0, "budget_bytes": 1 << 30, "device_bytes": 1 << 29,
              "resident_bytes": 500 << 20, "hosted_bytes": 200 << 20, "nvme_bytes": 100 << 20,
              "in_flight_bytes": 8 << 20, "spilled_bytes": spilled, "faulted_bytes": spilled,
              "prefetched_bytes": 0, "stall_s": 1.5, "stalls": 3, "faults": 7, "pinned": [
                  {"reason": "its address was asked for", "bytes": 1 << 20}], **more}
    return {"devices": [device],
            "store": {"kind": "io_uring", "dirs": ["/d"], "written_bytes": spilled,
                      "read_bytes": 0},
            "stalls": {"operators": [{"name": "aten::mm", "waits": 3, "seconds": 1.5}],
                       "call_sites": [{"name": "train.py:7 in step", "waits": 3, "seconds": 1.5}]}}


def looked(firn, folder):
    """The jobs in `folder`."""
    ours = {int(path.stem) for path in folder.glob("*.sock")}
    done = firn("top", "--once", "--json")
    assert done.returncode == 0, done.stderr
    return [job for job in json.loads(done.stdout)["jobs"] if job["pid"] in ours]
