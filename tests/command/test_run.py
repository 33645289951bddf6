"""`firn run`: every bad input is one line and status 2; good input becomes COMMAND."""

import json
import os
import random
import resource
import signal
import subprocess
import sys

import pytest
from firn_command import find_binary, refused

SOFTWARE = ("--device", "software", "--gpu-memory", "1GiB")


BAD_WORDS = [
    # arguments, what the line names
    ((), ("no command",)),
    (("frob",), ('unknown command "frob"',)),
    (("--frob",), ("--frob",)),
    (("run",), ("no COMMAND",)),
    (("run", "--"), ("no COMMAND",)),
    (("run", "--", ""), ("no COMMAND",)),
    (("run", "--frob", "--", "X"), ("--frob",)),
    (("run", "--frob=1", "--", "X"), ("--frob",)),
    (("run", "-b", "1GiB", "--", "X"), ("-b",)),
    (("run", "--budget", "--", "X"), ("--budget",)),
    (("run", "--budget", "", "--", "X"), ("--budget",)),
    (("run", "--budget", "0", "--", "X"), ("--budget", "0 bytes")),
    (("run", "--budget", "-1", "--", "X"), ("--budget",)),
    (("run", "--budget", "-1GiB", "--", "X"), ("--budget",)),
    (("run", "--budget", "10XB", "--", "X"), ("--budget", '"XB"')),
    (("run", "--budget", "much", "--", "X"), ("--budget", "much")),
    (("run", "--budget", "1", "--", "X"), ("--budget", "2MiB")),
    (("run", "--budget", "999999999999TiB", "--", "X"), ("--budget", "64 bits")),
    (("run", "--budget", "1GiB\n", "--", "X"), ("--budget", "\\x0a")),
    (("run", "--budget", "1GiB", "--budget", "2GiB", "--", "X"), ("--budget",)),
    (("run", "--host", "0", "--", "X"), ("--host",)),
    (("run", "--host", "8 Gi", "--", "X"), ("--host",)),
    (("run", "--frob", "X"), ("--frob",)),
    (("run", "--budget", "1GiB", "--frob", "X"), ("--frob",)),
    (("run", "--policy", "lru", "--", "X"), ("--policy", "age, lifetime")),
    (("run", "--watch", "2", "--", "X"), ("--watch",)),
    (("run", "--remake", "maybe", "--", "X"), ("--remake", "maybe")),
    (("run", "--relay", "many", "--", "X"), ("--relay", '"many"', "0 to 65536")),
    (("run", "--relay", "-1", "--", "X"), ("--relay", '"-1"')),
    (("run", "--device", "gpu", "--", "X"), ("--device", "gpu")),
    (("run", "--dir", "relative", "--", "X"), ("--dir", "relative")),
    (("run", "--dir", "", "--", "X"), ("--dir",)),
    (("run", "--dir", "/a;/b", "--", "X"), ("--dir", ";")),
    (("run", "--stats", "/nonexistent/file", "--", "X"), ("--stats", "/nonexistent")),
    (("run", "--stats", "/", "--", "X"), ("--stats", "directory")),
    (("run", "--stats", "", "--", "X"), ("--stats",)),
    (("run", "--trace", "/nonexistent/file", "--", "X"), ("--trace", "/nonexistent")),
    (("run", *SOFTWARE[:2], "--gpu-memory", "0", "--", "X"), ("--gpu-memory",)),
    (("run", *SOFTWARE[:2], "--gpu-memory", "10XB", "--", "X"), ("--gpu-memory",)),
    (("run", *SOFTWARE[:2], "--gpu-memory", "1MiB", "--", "X"), ("--gpu-memory", "2MiB")),
    (("run", *SOFTWARE, "--budget", "2GiB", "--", "X"), ("--budget", "2GiB", "1GiB")),
    (("run", *SOFTWARE, "--host", "999TiB", "--", "X"), ("--host", "999TiB")),
    (("run", *SOFTWARE, "--dir", "/nonexistent/dir", "--", "X"), ("/nonexistent/dir", "firn_dir")),
    (("run", *SOFTWARE, "--dir", "/etc/passwd", "--", "X"), ("/etc/passwd", "firn_dir")),
    (("run", *SOFTWARE, "--dir", "/sys/kernel", "--", "X"), ("/sys/kernel", "firn_dir")),
    (("run", *SOFTWARE, "--dir", "/dev/shm", "--", "X"), ("/dev/shm", "firn_dir", "tmpfs")),
]


@pytest.mark.parametrize("arguments, says", BAD_WORDS, ids=lambda value: " ".join(value)[:60])
def test_bad_words_are_refused(firn, tmp_path, arguments, says):
    ran = tmp_path / "ran"
    words = list(arguments)
    if words[-1:] == ["X"]:
        words[-1:] = ["touch", str(ran)]
    refused(firn(*words), *says)
    assert not ran.exists()


BAD_ENVIRONMENTS = [
    ({"PYTORCH_CUDA_ALLOC_CONF": "firn_bugdet:1GiB"}, ("firn_bugdet", "firn_budget")),
    ({"PYTORCH_CUDA_ALLOC_CONF": "firn_budget:10XB"}, ("firn_budget", '"XB"')),
    ({"PYTORCH_CUDA_ALLOC_CONF": "firn_budget:2GiB"}, ("firn_budget", "1GiB")),
    ({"PYTORCH_ALLOC_CONF": "firn_depth:0"}, ("firn_depth",)),
    ({"PYTORCH_CUDA_ALLOC_CONF": "backend:cudaMallocAsync"},
     ("PYTORCH_CUDA_ALLOC_CONF", "backend:cudaMallocAsync")),
    ({"FIRN_BUDGET": "0"}, ("FIRN_BUDGET",)),
    ({"FIRN_DIR": "relative"}, ("FIRN_DIR", "relative")),
    ({"FIRN_DIR": "/nonexistent/dir"}, ("/nonexistent/dir",)),
    ({"FIRN_POLICY": "lru"}, ("FIRN_POLICY",)),
    ({"FIRN_GPU_MEMORY": "lots"}, ("FIRN_GPU_MEMORY",)),
]


@pytest.mark.parametrize("environment, says", BAD_ENVIRONMENTS, ids=str)
def test_bad_environments_are_refused(firn, environment, says):
    arguments = [word for word in SOFTWARE if word not in ("--gpu-memory", "1GiB")]
    environment = {"FIRN_GPU_MEMORY": "1GiB", **environment}
    refused(firn("run", *arguments, "--", "true", environment=environment), *says)


def test_without_a_gpu_the_software_one_is_named(firn):
    result = firn("run", "--", "true", environment={"FIRN_DRIVER": "/nonexistent/libcuda.so.1"})
    refused(result, "--device software")


def test_a_file_size_limit_is_a_full_disk(firn, spill_dir):
    def limit():
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))

    result = firn("run", *SOFTWARE, "--dir", str(spill_dir), "--", "true", preexec_fn=limit)
    refused(result, str(spill_dir))


def test_a_full_disk_is_refused(firn, tmp_path):
    if os.geteuid() != 0:
        pytest.skip("mounting needs root")
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m,mode=700", "tmpfs", tmp_path],
                             capture_output=True, text=True)
    if mounted.returncode != 0:
        pytest.skip("mount refused: " + mounted.stderr.strip())
    try:
        result = firn("run", *SOFTWARE, "--dir", str(tmp_path), "--", "true",
                      environment={"FIRN_TEST_ALLOW_TMPFS": "1"})
        refused(result, str(tmp_path), "firn_dir")
    finally:
        subprocess.run(["umount", tmp_path], check=True)


@pytest.mark.parametrize("status", [0, 1, 2, 7, 255])
def test_the_exit_status_is_commands(firn, status):
    result = firn("run", *SOFTWARE, "--", "sh", "-c", f"echo out; exit {status}")
    assert (result.returncode, result.stdout, result.stderr) == (status, "out\n", "")


def test_signals_are_commands(firn):
    result = firn("run", *SOFTWARE, "--", "sh", "-c", "kill -TERM $$")
    assert result.returncode == -signal.SIGTERM


def test_a_missing_command_is_127_and_one_that_cannot_run_126(firn, tmp_path):
    result = firn("run", *SOFTWARE, "--", "no-such-command-anywhere")
    assert result.returncode == 127
    assert "no-such-command-anywhere" in result.stderr and result.stderr.count("\n") == 1
    (tmp_path / "file").write_text("data")
    result = firn("run", *SOFTWARE, "word", "--", "true")  # the command's own mark
    assert result.returncode == 127 and '"word"' in result.stderr, result
    result = firn("run", *SOFTWARE, "--", str(tmp_path / "file"))
    assert result.returncode == 126 and result.stderr.count("\n") == 1


def test_commands_own_words_pass_untouched(firn):
    words = ["--budget", "--", "-x", "", "a b", "\n", "--help"]
    result = firn("run", *SOFTWARE, "--", sys.executable, "-c",
                  "import json, sys; print(json.dumps(sys.argv[1:]))", *words)
    assert json.loads(result.stdout) == words


def test_the_mark_before_the_command_may_be_left_out(firn):
    words = ["--budget", "-x", "--help", "--", "a", "--"]
    result = firn("run", *SOFTWARE, "--budget=512M", sys.executable, "-c",
                  "import json, sys; print(json.dumps(sys.argv[1:]))", *words)
    assert json.loads(result.stdout) == words, result


def environment_of(firn, *arguments, environment=None, **options):
    result = firn("run", *SOFTWARE, *arguments, "--", "env", "-0", environment=environment,
                  **options)
    assert result.returncode == 0, result.stderr
    return dict(entry.split("=", 1) for entry in result.stdout.split("\0") if entry)


def test_the_environment_says_what_was_asked(firn, spill_dir, tmp_path):
    seen = environment_of(firn, "--budget", "512MiB", "--host", "64MiB", "--dir", str(spill_dir),
                          "--policy", "lifetime", "--stats", "s-%p.json", "--trace", "t.csv",
                          "--watch", "0.25", cwd=tmp_path,
                          environment={"PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb:64",
                                       "LD_PRELOAD": ""})
    words = seen["PYTORCH_CUDA_ALLOC_CONF"].split(",")
    assert words[:2] == ["max_split_size_mb:64", "backend:firn"]
    assert "firn_budget:512MiB" in words and f"firn_dir:{spill_dir}" in words
    assert seen["FIRN_BUDGET"] == "512MiB" and seen["FIRN_HOST"] == "64MiB"
    assert seen["FIRN_DIR"] == str(spill_dir) and seen["FIRN_POLICY"] == "lifetime"
    assert seen["FIRN_STATS"] == str(tmp_path / "s-%p.json")
    assert seen["FIRN_TRACE"] == str(tmp_path / "t.csv") and seen["FIRN_WATCH"] == "0.25"
    assert seen["FIRN_STRICT"] == "1" and seen["FIRN_DEVICE"] == "software"
    assert seen["FIRN_GPU_MEMORY"] == str(1 << 30)
    libraries = seen["LD_PRELOAD"].split(":")
    assert [os.path.basename(each) for each in libraries] == \
        ["libfirn_preload.so", "libcudart.so.13", "libnccl.so.2"]
    assert all(os.path.isfile(each) for each in libraries)


def test_options_override_words_and_words_the_environment(firn):
    seen = environment_of(firn, "--budget", "256MiB",
                          environment={"FIRN_BUDGET": "1GiB", "FIRN_HOST": "64MiB",
                                       "PYTORCH_CUDA_ALLOC_CONF":
                                           "firn_budget:128MiB,firn_host:32MiB"})
    words = seen["PYTORCH_CUDA_ALLOC_CONF"].split(",")
    assert words.index("firn_budget:256MiB") > words.index("firn_budget:128MiB")
    assert seen["FIRN_BUDGET"] == "256MiB"
    assert "firn_host:32MiB" in words


def test_pools_of_frameworks_are_switched_unless_the_user_says_otherwise(firn):
    seen = environment_of(firn)
    assert seen["XLA_PYTHON_CLIENT_ALLOCATOR"] == "cuda_async"
    assert seen["XLA_PYTHON_CLIENT_PREALLOCATE"] == "false"
    assert seen["TF_GPU_ALLOCATOR"] == "cuda_malloc_async"
    own = {"XLA_PYTHON_CLIENT_ALLOCATOR": "bfc", "XLA_PYTHON_CLIENT_PREALLOCATE": "true",
           "TF_GPU_ALLOCATOR": ""}
    seen = environment_of(firn, environment=own)
    assert {name: seen[name] for name in own} == own


def test_the_newer_variable_is_used_where_it_is_set(firn):
    seen = environment_of(firn, "--budget", "256MiB",
                          environment={"PYTORCH_ALLOC_CONF": "expandable_segments:True",
                                       "PYTORCH_CUDA_ALLOC_CONF": "firn_host:32MiB"})
    assert seen["PYTORCH_ALLOC_CONF"] == \
        "expandable_segments:True,backend:firn,firn_host:32MiB,firn_budget:256MiB"
    assert seen["PYTORCH_CUDA_ALLOC_CONF"] == ""


def test_words_that_an_outer_python_has_taken_are_kept(firn):
    seen = environment_of(firn, "--budget", "256MiB",
                          environment={"FIRN_CONF": "backend:firn,firn_host:32MiB"})
    assert seen["FIRN_CONF"] == "backend:firn,firn_host:32MiB,firn_budget:256MiB"
    assert seen["PYTORCH_CUDA_ALLOC_CONF"] == seen["FIRN_CONF"]


def test_a_nested_run_keeps_what_it_does_not_change(firn):
    result = firn("run", *SOFTWARE, "--budget", "256MiB", "--", find_binary(), "run", "--host",
                  "64MiB", "--remake", "on", "--relay", "8", "--", "env")
    assert result.returncode == 0, result.stderr
    for word in ("FIRN_BUDGET=256MiB\n", "FIRN_HOST=64MiB\n", "FIRN_REMAKE=1\n", "FIRN_RELAY=8\n"):
        assert word in result.stdout
    (preloaded,) = [line for line in result.stdout.splitlines() if line.startswith("LD_PRELOAD=")]
    assert preloaded.count("libfirn_preload.so") == 1


PIECES = ["run", "doctor", "--", "--budget", "--dir", "--host", "--policy", "--device", "software",
          "--watch", "--stats", "--remake", "--relay", "--gpu-memory", "1GiB", "0", "-1", "", "=", "/tmp", "\n", "\x01",
          "é", "a" * 300, "--budget=1GiB", "--help-me", "-", "true", "false", "{}", "%s%n"]


@pytest.mark.parametrize("seed", range(200))
def test_any_words_end_in_one_line_or_in_command(firn, seed, tmp_path):
    choice = random.Random(seed)
    words = [choice.choice(PIECES) for _ in range(choice.randrange(8))]
    if words[:1] == ["doctor"] or "--" in words and words[0] != "run":
        words.insert(0, "run")
    if "--" in words:  # the command is `true` or `false`, so that nothing else is started
        words = words[:words.index("--") + 1] + [choice.choice(["true", "false"])]
    result = firn(*words, cwd=tmp_path)
    # (A word that begins no option begins the command, which may not be there.)
    assert result.returncode in (0, 1, 2) or (
        result.returncode in (126, 127) and result.stderr.startswith('firn: run: "')
        and any(not word.startswith("-") for word in words[1:])), (words, result)
    if result.returncode == 2:
        refused(result)
    else:
        assert result.stderr.count("\n") <= 1, (words, result)
