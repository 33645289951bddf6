"""`firn doctor`: what it finds is in its JSON document, and bad input is one line and status 2."""

import json
import os

import pytest
from firn_command import ROOT, refused

KNOBS = ["budget", "dir", "host", "policy", "fallback", "store", "store_size", "depth",
         "io_patience", "spread", "piece", "watch", "spare", "places", "remake", "relay", "stats",
         "trace", "oom_page", "metrics", "driver", "encrypt", "looks", "copy_gate", "free_waits",
         "memory_info", "verify"]


@pytest.mark.parametrize("arguments, says", [
    (("--frob",), ("--frob",)),
    (("word",), ("word",)),
    (("--dir",), ("--dir",)),
    (("--dir", "/nonexistent/dir"), ("/nonexistent/dir",)),
    (("--dir", "relative"), ("relative",)),
    (("--dir", "/etc/passwd"), ("/etc/passwd",)),
], ids=lambda value: " ".join(value))
def test_bad_words_are_refused(firn, arguments, says):
    result = firn("doctor", *arguments)
    assert result.returncode == 2, result
    lines = [line for line in result.stderr.splitlines() if "measuring" not in line]
    assert len(lines) == 1 and result.stdout == "", result
    for text in says:
        assert text in lines[0]


def test_bad_configuration_is_refused(firn):
    refused(firn("doctor", environment={"FIRN_BUDGET": "10XB"}), "FIRN_BUDGET", '"XB"')


def test_the_document_holds_every_finding(firn, spill_dir):
    result = firn("doctor", "--json", "--dir", str(spill_dir),
                  environment={"FIRN_BUDGET": "3GiB", "FIRN_BUGDET": "1GiB",
                               "PYTORCH_CUDA_ALLOC_CONF": "backend:firn,firn_host:64MiB"})
    assert result.returncode == 0, result.stderr
    report = json.loads(result.stdout)
    assert set(report) == {"firn", "driver", "software_gpu", "preload", "torch", "io_uring",
                           "hugepages", "memlock", "machine", "dirs", "gpudirect",
                           "unknown_variables", "use", "knobs"}
    # A cause for everything that is not there.
    assert not report["gpudirect"]["used"] and report["gpudirect"]["why"]
    assert report["driver"]["usable"] == (report["driver"]["why"] == "")
    assert report["io_uring"]["works"] == (report["io_uring"]["why"] == "")
    assert report["torch"]["usable"] == (report["torch"]["why"] == "")
    assert report["preload"]["usable"] and report["use"]["other_programs"], report["preload"]
    assert os.path.isfile(report["preload"]["library"])
    assert report["hugepages"]["staging"] in ("hugetlb", "transparent", "4 KiB")
    with open("/proc/meminfo", encoding="ascii") as file:
        total = int(file.readline().split()[1]) * 1024
    assert report["machine"]["memory_bytes"] == total

    (directory,) = report["dirs"]
    assert directory["dir"] == str(spill_dir) and directory["usable"] and directory["o_direct"]
    assert directory["store"] in ("io_uring", "threads")
    assert 1e6 < directory["write_bytes_s"] < 1e12 and 1e6 < directory["read_bytes_s"] < 1e12
    free = os.statvfs(spill_dir).f_bavail * os.statvfs(spill_dir).f_frsize
    assert abs(directory["free_bytes"] - free) < 8 << 30  # others write meanwhile
    assert report["use"]["store"] == directory["store"]

    knobs = {knob["name"]: knob for knob in report["knobs"]}
    assert list(knobs) == KNOBS
    assert knobs["budget"]["value"] == "3GiB" and knobs["budget"]["source"] == "environment"
    assert knobs["host"]["value"] == "64MiB" and knobs["host"]["source"] == "words"
    assert knobs["policy"]["value"] == "lifetime" and knobs["policy"]["source"] == "default"
    assert report["unknown_variables"] == ["FIRN_BUGDET"]
    assert any("FIRN_BUGDET" in why for why in report["use"]["why_not_better"])


def test_without_a_driver_it_says_so(firn):
    result = firn("doctor", "--json", environment={"FIRN_DRIVER": "/nonexistent/libcuda.so.1"})
    driver = json.loads(result.stdout)["driver"]
    assert not driver["usable"] and "/nonexistent/libcuda.so.1" in driver["why"]


def test_the_software_gpu_is_a_driver(firn):
    found = json.loads(firn("doctor", "--json").stdout)["software_gpu"]
    assert found["usable"], found
    result = firn("doctor", "--json", environment={"FIRN_DRIVER": found["driver"],
                                                   "FIRN_GPU_MEMORY": "3GiB",
                                                   "FIRN_GPU_DEVICES": "2"})
    driver = json.loads(result.stdout)["driver"]
    assert driver["usable"] and driver["software"]
    assert [device["memory_bytes"] for device in driver["devices"]] == [3 << 30, 3 << 30]


def test_text_and_document_agree(firn):
    text = firn("doctor").stdout
    report = json.loads(firn("doctor", "--json").stdout)
    for name in ("device", "store", "staging"):
        assert report["use"][name] in text
    for why in report["use"]["why_not_better"]:
        assert why in text
    for knob in KNOBS:
        assert f"\n{knob} " in text


def test_a_bad_configured_directory_is_reported_not_refused(firn):
    result = firn("doctor", "--json", environment={"FIRN_DIR": "/nonexistent/dir"})
    assert result.returncode == 0
    (directory,) = json.loads(result.stdout)["dirs"]
    assert not directory["usable"] and "/nonexistent/dir" in directory["why"]


def test_readme_holds_the_table_of_knobs(firn):
    table = firn("doctor", "--markdown").stdout
    assert table.count("\n") == len(KNOBS) + 2
    assert table in (ROOT / "allocator/command/README.md").read_text(encoding="utf-8")


def test_the_reason_for_no_gpu_is_told_once(firn):
    text = firn("doctor", environment={"FIRN_DRIVER": "/nonexistent/libcuda.so.1"}).stdout
    assert text.count("/nonexistent/libcuda.so.1: cannot open") == 1, text
    assert "no GPU: the driver is unusable" in text


def test_a_directory_of_the_command_line_is_the_knobs_value(firn, tmp_path):
    report = json.loads(firn("doctor", "--json", "--dir", str(tmp_path)).stdout)
    (knob,) = [each for each in report["knobs"] if each["name"] == "dir"]
    assert knob["value"] == str(tmp_path) and knob["source"] == "--dir", knob
