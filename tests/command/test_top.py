"""`firn top`, `firn stats` and `firn spill` with whatever a socket's other end may do: the jobs
here are made up. Real ones: tests/torch/test_live_jobs.py. On terminals: test_top_terminal.py."""

import concurrent.futures
import contextlib
import json
import os
import re
import signal
import socket
import struct
import subprocess
import sys
import threading
import time

import pytest
from firn_command import clean_environment, find_binary, refused
from top_jobs import document, folder, job, looked  # noqa: F401  (a fixture)

NOBODY = 65534


def test_nothing_to_see(firn, folder):
    assert looked(firn, folder) == []
    done = firn("top", "--once")
    assert done.returncode == 0 and "RESIDENT" in done.stdout.splitlines()[0]


def test_a_job_and_how_fast_it_moves(firn, folder):
    begun, asked = time.monotonic(), []

    def answer(connected):
        asked.append(connected.recv(100))
        moved = int((time.monotonic() - begun) * (100 << 20))
        connected.sendall(json.dumps({**document(moved), "pid": number}).encode())

    with job(folder, answer) as number:
        (found,) = looked(firn, folder)
        text = firn("top", "--once").stdout
    assert set(asked) == {b"watch\n"}
    assert found["pid"] == number and found["command"] == "sleep 600"
    (device,) = found["devices"]
    assert device["budget_bytes"] == 1 << 30 and device["in_flight_bytes"] == 8 << 20
    # Its clock is read a moment before ours: the rate is known within what that moment is.
    for rate in (device["out_bytes_s"], device["in_bytes_s"], found["store"]["write_bytes_s"]):
        assert rate == pytest.approx(100 << 20, rel=0.5)
    assert found["store"]["read_bytes_s"] == 0 and device["faults_s"] == 0
    assert "train.py:7 in step" in text and "sleep 600" in text and "500MiB" in text


def test_jobs_that_do_not_answer_hold_up_nobody(firn, folder):
    stop = threading.Event()
    with job(folder, lambda connected: stop.wait(60)) as silent, \
            job(folder, "nonsense") as nonsense, job(folder, "") as empty, \
            job(folder, document()) as well:
        listening = socket.socket(socket.AF_UNIX)  # nobody accepts there
        full = os.getpid()
        listening.bind(str(folder / f"{full}.sock"))
        listening.listen(0)
        crowd = []
        for _ in range(4):
            one = socket.socket(socket.AF_UNIX)
            one.setblocking(False)
            with contextlib.suppress(OSError):
                one.connect(str(folder / f"{full}.sock"))
            crowd.append(one)
        jobs = looked(firn, folder)
        with concurrent.futures.ThreadPoolExecutor() as pool:  # each waits for five seconds
            one, quiet, still = pool.map(firn, ("stats", "stats", "spill"),
                                         (str(full), str(silent), str(silent)))
        stop.set()
        for each in (*crowd, listening):
            each.close()
    errors = {each["pid"]: each.get("error", "") for each in jobs}
    assert "does not answer" in errors[silent] and "does not answer" in errors[full]
    assert "nonsense" in errors[nonsense] and "refused to answer" in errors[empty]
    assert [each["pid"] for each in jobs if "error" not in each] == [well]
    assert len(jobs) == 5
    assert one.returncode == quiet.returncode == still.returncode == 1
    assert "does not answer within 5.0 s" in still.stderr
    assert "does not answer" in one.stderr and "does not answer within 5.0 s" in quiet.stderr


@pytest.mark.parametrize("odd", [
    {"devices": [7]}, {"devices": 3}, {"devices": [{"watching": "perhaps"}]}, {"store": [1]},
    {"stalls": "none"}, json.loads("[" * 200 + "]" * 200)])
def test_documents_of_another_shape_hold_up_nobody(firn, folder, odd):
    answer = json.dumps(odd) if isinstance(odd, dict) else json.dumps({"stalls": {"a": odd}})
    with job(folder, answer) as ill, job(folder, document()) as well:
        jobs = {job["pid"]: job for job in looked(firn, folder)}
        assert "nonsense" in jobs[ill]["error"] and "error" not in jobs[well]
        for command in ("stats", "spill"):
            done = firn(command, str(ill))
            assert done.returncode == 1 and "nonsense" in done.stderr, done.stderr


def test_dead_sockets_are_tidied(firn, folder):
    dead = folder / "4194305.sock"
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(str(dead))
    listening.close()
    (folder / "notes.txt").write_text("not ours")
    assert looked(firn, folder) == []
    assert [each.name for each in folder.iterdir()] == ["notes.txt"]


def test_a_stopped_process(firn, folder):
    """As a job that was stopped by the shell: it has a socket, and is silent."""
    code = ("import socket, sys; s = socket.socket(socket.AF_UNIX); s.bind(sys.argv[1]); "
            "s.listen(8); print(flush=True); s.accept()")
    path = folder / "1.part"
    process = subprocess.Popen([sys.executable, "-c", code, str(path)], stdout=subprocess.PIPE)
    process.stdout.readline()
    path.rename(folder / f"{process.pid}.sock")
    process.send_signal(signal.SIGSTOP)
    try:
        (found,) = looked(firn, folder)
        assert found["pid"] == process.pid and "does not answer" in found["error"]
    finally:
        process.kill()
        process.wait()


@pytest.mark.parametrize("command", ["stats", "spill"])
def test_bad_words(firn, folder, command):
    refused(firn(command), "PID")
    refused(firn(command, "abc"), '"abc" is not a process id')
    refused(firn(command, "-3"))
    refused(firn(command, "99999999999999"), "not a process id")
    refused(firn(command, "4194305"), "there is no process 4194305")
    refused(firn(command, str(os.getpid())), f"process {os.getpid()} does not use Firn's memory")
    refused(firn(command, "1", "2"))
    refused(firn("top", "--twice"), "--twice")
    refused(firn("top", stdin=subprocess.DEVNULL), "--once")


def test_another_users_process(firn, folder):
    if os.geteuid() == 0:
        done = firn("stats", "1", user=NOBODY, environment={"XDG_RUNTIME_DIR": str(folder.parent)})
        refused(done, "process 1 is another user's")
    else:
        refused(firn("stats", "1"), "process 1 is another user's")


def test_another_users_socket_and_folder(firn, folder):
    if os.geteuid() != 0:
        pytest.skip("needs root, to be another user")
    path = folder / f"{os.getpid()}.sock"
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(str(path))
    child = os.fork()
    if child == 0:  # who listens as nobody, where root looks
        os.setuid(NOBODY)
        listening.listen(8)
        while True:
            time.sleep(60)
    try:
        credentials = struct.Struct("3i")
        until = time.monotonic() + 60
        while True:  # until the child listens
            with socket.socket(socket.AF_UNIX) as probe, contextlib.suppress(ConnectionError):
                probe.connect(str(path))
                peer = probe.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, credentials.size)
                assert credentials.unpack(peer)[1] == NOBODY
                break
            assert time.monotonic() < until
        refused(firn("stats", str(os.getpid())), "another user's process listens there")
        (found,) = looked(firn, folder)
        assert "another user's process" in found["error"]
        os.chown(folder, NOBODY, NOBODY)
        refused(firn("stats", str(os.getpid())), "must be a folder of yours with mode 0700")
        assert looked(firn, folder) == []
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        listening.close()


def test_stats_and_spill_as_text_and_as_they_came(firn, folder):
    spilled = {"pid": 1, "devices": [{"device": 0, "before_bytes": 10 << 20,
                                      "device_bytes": 2 << 20, "hosted_bytes": 8 << 20,
                                      "nvme_bytes": 0, "watching": True, "trouble": [],
                                      "pinned": [{"reason": "firn.pin()", "bytes": 2 << 20}]}]}
    stays = {"pid": 1, "devices": [{**spilled["devices"][0], "device_bytes": 10 << 20,
                                    "watching": False}]}
    assert sum(each["bytes"] for each in stays["devices"][0]["pinned"]) == 2 << 20

    well = {"pid": 1, **document()}

    def answer(connected):
        word = connected.recv(100)
        connected.sendall(json.dumps(spilled if word == b"spill\n" else well).encode())

    with job(folder, answer) as number, job(folder, json.dumps(stays)) as other:
        assert json.loads(firn("stats", str(number), "--json").stdout) == well
        text = firn("stats", str(number)).stdout
        assert "budget 1.0GiB" in text and "train.py:7 in step" in text
        done = firn("spill", str(number))
        assert done.returncode == 0
        assert "8.0MiB left the device, 2.0MiB stay" in done.stdout and "firn.pin()" in done.stdout
        assert json.loads(firn("spill", str(number), "--json").stdout) == spilled
        done = firn("spill", str(other))
        assert done.returncode == 1 and "FIRN_WATCH=0" in done.stdout
        assert "8.0MiB  in use again, or kept by firn.no_spill()" in done.stdout


@pytest.mark.parametrize("words, shown", [
    (("-u", "-W", "ignore", "{}/train.py", "--data", "/a/b"),
     "-u -W ignore train.py --data /a/b"),
    (("-c", "import time; time.sleep(600)"), "-c import time; time.sleep(600)"),
], ids=["script", "code"])
def test_jobs_are_told_apart_by_what_they_run(firn, folder, tmp_path, words, shown):
    (tmp_path / "train.py").write_text("import time; time.sleep(600)")
    words = [word.format(tmp_path) for word in words]
    process = subprocess.Popen([sys.executable, *words])
    try:
        with job(folder, document(), process.pid) as number:
            lines = firn("top", "--once").stdout.splitlines()
            (whole,) = [job for job in looked(firn, folder) if job["pid"] == number]
    finally:
        process.kill()
        process.wait()
    (line,) = [line for line in lines if line.split()[0] == str(number)]
    assert line.endswith(" " + os.path.basename(sys.executable) + " " + shown), line
    assert whole["command"] == " ".join([sys.executable, *words])


def parsed_metrics(text):
    """{(name, labels): value} of OpenMetrics text, whose form is looked at on the way."""
    lines = text.split("\n")
    assert lines[-2:] == ["# EOF", ""]
    types, samples, told = {}, {}, []
    for line in lines[:-2]:
        if line.startswith("# TYPE "):
            _, _, name, kind = line.split()
            assert name not in types and kind in ("counter", "gauge")
            types[name] = kind
            told.append(name)
        elif line.startswith("# UNIT "):
            _, _, name, unit = line.split()
            assert name == told[-1] and name.endswith("_" + unit)
        elif line.startswith("# HELP "):
            assert line.split()[2] == told[-1] and line.endswith(".")
        else:
            name, labels, value = re.fullmatch(r'(\w+)\{(.*)\} (\S+)', line).groups()
            family = name.removesuffix("_total") if types[told[-1]] == "counter" else name
            assert family == told[-1] and (types[family] == "counter") == name.endswith("_total")
            pairs = re.findall(r'(\w+)="((?:[^"\\\n]|\\.)*)"', labels)
            assert ",".join(f'{key}="{each}"' for key, each in pairs) == labels
            assert (name, tuple(pairs)) not in samples
            samples[name, tuple(pairs)] = float(value)
    return samples


def test_stats_for_monitoring(firn, folder):
    told = {"pid": 1, **document()}
    first = {**told["devices"][0], "spilled_bytes": 5 << 20, "stall_s": 1.5, "watching": True,
             "pinned": [{"reason": 'a "word" \\ and\na line', "bytes": 7}]}
    told["devices"] = [first, {**first, "device": 1, "spilled_bytes": 9}]
    told["store"] = {**told.get("store", {}), "written_bytes": 11,
                     "measured": [{"dir": "/nvme0", "written_bytes": 4}]}
    with job(folder, json.dumps(told)) as number:
        done = firn("stats", str(number), "--metrics")
        both = firn("stats", str(number), "--metrics", "--json")
    assert done.returncode == 0 and done.stderr == ""
    samples = parsed_metrics(done.stdout)
    device = [(("pid", "1"), ("device", str(each))) for each in range(2)]
    assert samples["firn_spilled_bytes_total", device[0]] == 5 << 20
    assert samples["firn_spilled_bytes_total", device[1]] == 9
    assert samples["firn_stall_seconds_total", device[0]] == 1.5
    assert samples["firn_watching", device[0]] == 1
    assert samples["firn_pinned_bytes",
                   device[0] + (("reason", 'a \\"word\\" \\\\ and\\na line'),)] == 7
    assert samples["firn_store_written_bytes_total", (("pid", "1"),)] == 11
    assert samples["firn_directory_written_bytes_total",
                   (("pid", "1"), ("directory", "/nvme0"))] == 4
    assert both.returncode == 2 and "--metrics" in both.stderr


def test_a_line_of_json_each_second_until_nobody_reads(firn, folder):
    with job(folder, document()) as number:
        process = subprocess.Popen([find_binary(), "top", "--json"], stdout=subprocess.PIPE,
                                   env=clean_environment(), text=True)
        lines = [json.loads(process.stdout.readline()) for _ in range(2)]
        process.stdout.close()
        process.wait(60)
    assert all(number in [job["pid"] for job in each["jobs"]] for each in lines)


def test_what_a_job_was_told(firn, folder):
    with job(folder, document(notices=["thrash: 80 % of the last 3.0 s"])) as number:
        assert "device 0: thrash: 80 % of the last 3.0 s" in firn("top", "--once").stdout
        assert "notice   thrash: 80 %" in firn("stats", str(number)).stdout


def test_several_jobs_and_devices(firn, folder):
    two = document()
    two["devices"] = [two["devices"][0], {**two["devices"][0], "device": 1}]
    with job(folder, two) as one, job(folder, document()) as other:
        lines = firn("top", "--once").stdout.splitlines()
    rows = [line.split()[:2] for line in lines]
    assert [each for each in rows if each[0] in (str(one), str(other))] == sorted(
        [[str(one), "0"], [str(one), "1"], [str(other), "0"]], key=lambda each: int(each[0]))
    assert len({line.index("COMMAND") for line in lines[:1]} |
               {line.index("sleep 600") for line in lines if "sleep 600" in line}) == 1


def test_words_of_a_job_are_one_line(firn, folder):
    evil = "a\nb\x1b[31mc"
    told = document(notices=[evil], trouble=[evil])
    told["stalls"]["call_sites"][0]["name"] = evil
    with job(folder, told) as number:
        for text in (firn("top", "--once").stdout, firn("stats", str(number)).stdout):
            assert "a b [31mc" in text and "\x1b" not in text and "a\nb" not in text
