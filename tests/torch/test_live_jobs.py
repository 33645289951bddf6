"""Jobs looked at while they run, by `firn top`, `firn stats` and `firn spill`: an ordinary training
loop on the software GPU that makes a step when it is told to."""

import contextlib
import json
import os
import pathlib
import select
import signal
import subprocess

import pytest

import script_runs

MIB = 1 << 20
JOB = """
import hashlib, os, sys
import torch
torch.manual_seed(0)
model = torch.nn.Sequential(*[torch.nn.Linear(1024, 1024) for _ in range(12)]).cuda()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
data = torch.randn(64, 1024, device="cuda")

def step():
    optimizer.zero_grad()
    loss = model(data).square().mean()
    loss.backward()
    optimizer.step()
    torch.cuda.synchronize()

def digest():
    sums = [parameter.detach().cpu().numpy().tobytes() for parameter in model.parameters()]
    return hashlib.sha256(b"".join(sums)).hexdigest()

print("ready", os.getpid(), flush=True)
for line in sys.stdin:
    word = line.strip()
    if word == "step":
        step()
        print("stepped", flush=True)
    elif word == "digest":
        print(digest(), flush=True)
    elif word == "fork":
        child = os.fork()
        if child == 0:
            os._exit(0)
        print(os.waitpid(child, 0)[1], flush=True)
    elif word == "leave a child":
        child = os.fork()
        if child == 0:
            pipe = os.pipe()
            os.read(pipe[0], 1)
        print(child, flush=True)
"""


class Job:
    def __init__(self, process):
        self.process = process
        self.pid = int(self.line().removeprefix("ready "))

    def line(self):
        ready, _, _ = select.select([self.process.stdout], [], [], script_runs.TIMEOUT_S)
        assert ready, "the job says nothing"
        text = self.process.stdout.readline()
        assert text, "the job has ended"
        return text.strip() if not text.startswith("firn:") else self.line()

    def tell(self, word):
        self.process.stdin.write(word + "\n")
        self.process.stdin.flush()
        return self.line()


@pytest.fixture
def runtime_dir(tmp_path):
    path = tmp_path / "runtime"
    path.mkdir(mode=0o700)
    return path


@pytest.fixture
def start(paths, runtime_dir, tmp_path):
    """start(**of firn_command): a context with the Job."""

    @contextlib.contextmanager
    def started(**options):
        command = script_runs.firn_command(paths, tmp_path, JOB, **options)
        environment = {**script_runs.clean_environment(), "XDG_RUNTIME_DIR": str(runtime_dir)}
        process = subprocess.Popen(command, env=environment, stdin=subprocess.PIPE,
                                   stdout=subprocess.PIPE, text=True)
        try:
            yield Job(process)
        finally:
            process.stdin.close()
            try:
                process.wait(script_runs.TIMEOUT_S)
            finally:
                process.kill()
            process.stdout.close()

    return started


@pytest.fixture
def firn(paths, runtime_dir):
    def run(*words, status=0):
        environment = {**script_runs.clean_environment(), "XDG_RUNTIME_DIR": str(runtime_dir)}
        done = subprocess.run([paths.firn, *map(str, words)], capture_output=True, text=True,
                              env=environment, timeout=script_runs.TIMEOUT_S)
        assert done.returncode == status, done.stdout + done.stderr
        return done.stdout if status == 0 else done.stderr

    return run


def device_of(firn, job):
    (device,) = json.loads(firn("stats", job.pid, "--json"))["devices"]
    return device


@pytest.mark.quick
def test_a_job_under_pressure(start, firn, spill_dir, runtime_dir):
    with start(budget=120 * MIB, dirs=[spill_dir]) as job:
        for _ in range(3):
            job.tell("step")
        assert device_of(firn, job)["budget_bytes"] == 120 * MIB
        jobs = json.loads(firn("top", "--once", "--json"))["jobs"]
        (found,) = [each for each in jobs if each["pid"] == job.pid]
        assert "python" in found["command"]
        (device,) = found["devices"]
        assert device["budget_bytes"] == 120 * MIB and device["spilled_bytes"] > 0
        assert 0 < device["resident_bytes"] <= 120 * MIB and device["stalls"] > 0
        # It has been looked at: from here on waits are told by line, in autograd's threads by that
        # of the forward operator. (Who waits in which step is the machine's affair.)
        for _ in range(20):
            job.tell("step")
            stalls = json.loads(firn("stats", job.pid, "--json"))["stalls"]
            sites = [row["name"] for row in stalls["call_sites"]]
            backward = [name for name in sites if name.startswith("backward of aten::")]
            if backward and len(backward) < len(sites):
                break
        assert any(name.endswith(" in step") for name in backward), stalls
        assert any("in step" in name for name in sites if name not in backward), stalls
        assert all(", in aten::" in name for name in sites if "without Python" in name), stalls
        assert any(row["name"].startswith("aten::") for row in stalls["operators"])
        text = firn("top", "--once")
        assert str(job.pid) in text and "in step" in text
        assert "budget 120MiB" in firn("stats", job.pid)
        sockets = list((runtime_dir / "firn").iterdir())
        assert [path.name for path in sockets] == [f"{job.pid}.sock"]
        assert sockets[0].stat().st_mode & 0o777 == 0o600
        assert (runtime_dir / "firn").stat().st_mode & 0o777 == 0o700
    assert list((runtime_dir / "firn").iterdir()) == []


@pytest.mark.parametrize("policy", ["age", pytest.param("lifetime", marks=pytest.mark.quick)])
def test_an_idle_jobs_memory_is_sent_away_and_comes_back(start, firn, spill_dir, policy):
    ends = []
    for spilled in (False, True):
        # Steps enough that the period is known. Watched from the start, but with room for all.
        with start(budget=512 * MIB, dirs=[spill_dir], host="64MiB",
                   options=["--policy", policy, "--trace", os.devnull]) as job:
            for _ in range(8):
                job.tell("step")
            if spilled:
                before = device_of(firn, job)
                assert before["device_bytes"] > 150 * MIB and before["spilled_bytes"] == 0
                told = firn("spill", job.pid)
                after = device_of(firn, job)
                left = before["device_bytes"] - after["device_bytes"]
                assert left > 100 * MIB, told
                assert after["hosted_bytes"] + after["nvme_bytes"] > 100 * MIB
                pinned = sum(each["bytes"] for each in after["pinned"])
                assert after["device_bytes"] <= pinned + 8 * MIB, told
                # It stays there: nothing is fetched for a job that does nothing.
                again = json.loads(firn("spill", job.pid, "--json"))["devices"][0]
                assert again["before_bytes"] == after["device_bytes"]
                assert "stay" in told
            job.tell("step")
            if spilled:
                assert device_of(firn, job)["device_bytes"] > after["device_bytes"]
            ends.append(job.tell("digest"))
    assert ends[0] == ends[1]


def test_a_job_that_fits_is_watched_from_then_on(start, firn, spill_dir):
    with start(budget=2048 * MIB, dirs=[spill_dir]) as job:
        job.tell("step")
        told = firn("spill", job.pid)  # no more than what was cached
        assert "not yet seen in an operator" in told and "spill again after a step" in told
        assert not device_of(firn, job)["watching"]
        for _ in range(2):
            job.tell("step")
        assert device_of(firn, job)["watching"]
        assert "left the device" in firn("spill", job.pid)
        assert device_of(firn, job)["spilled_bytes"] > 100 * MIB
        digest = job.tell("digest")
        job.tell("step")
    with start(budget=2048 * MIB, dirs=[spill_dir]) as job:
        for _ in range(3):
            job.tell("step")
        assert job.tell("digest") == digest


def control_thread(job):
    """How often the thread that waits for viewers has slept, and how much it has worked."""
    (task,) = [task for task in pathlib.Path(f"/proc/{job.pid}/task").iterdir()
               if (task / "comm").read_text().strip() == "firn-control"]
    status = dict(line.split(":", 1) for line in (task / "status").read_text().splitlines())
    return [int(status[name]) for name in ("voluntary_ctxt_switches",
                                           "nonvoluntary_ctxt_switches")]


@pytest.mark.quick
def test_who_is_not_looked_at_pays_nothing(start):
    with start(budget=512 * MIB) as job:
        job.tell("step")
        before = control_thread(job)
        for _ in range(4):
            job.tell("step")
        assert control_thread(job) == before


@pytest.mark.quick
def test_children_and_killed_jobs(start, firn, spill_dir, runtime_dir):
    with start(budget=512 * MIB, dirs=[spill_dir]) as job:
        path = runtime_dir / "firn" / f"{job.pid}.sock"
        assert job.tell("fork") == "0"
        assert path.exists()
        device_of(firn, job)
        child = int(job.tell("leave a child"))
        assert "does not use Firn's memory" in firn("stats", child, status=2)
        os.kill(job.pid, signal.SIGSTOP)
        assert "does not answer" in firn("stats", job.pid, status=1)
        os.kill(job.pid, signal.SIGKILL)
        job.process.wait()
        try:
            assert f"there is no process {job.pid}" in firn("stats", job.pid, status=2)
            assert not path.exists()  # tidied
        finally:
            os.kill(child, signal.SIGKILL)


def test_a_process_without_cuda_has_no_socket(paths, runtime_dir, tmp_path):
    command = script_runs.firn_command(paths, tmp_path, "import torch; torch.ones(1000).sum()",
                                       budget=512 * MIB)
    done = subprocess.run(command, capture_output=True, text=True, timeout=script_runs.TIMEOUT_S,
                          env={**script_runs.clean_environment(),
                               "XDG_RUNTIME_DIR": str(runtime_dir)})
    assert done.returncode == 0, done.stderr
    assert not (runtime_dir / "firn").exists()
