"""`firn doctor -- COMMAND`, and `firn run --stats` of a program without Python."""

import json
import shutil
import subprocess

import pytest
from firn_command import build_copies, refused

SOFTWARE = ("--device", "software")


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    return build_copies(tmp_path_factory.mktemp("program"))


def test_a_program_without_python(firn, program, tmp_path):
    stats = tmp_path / "stats.json"
    result = firn("run", *SOFTWARE, "--gpu-memory", "1GiB", "--budget", "64MiB", "--host", "64MiB",
                  "--stats", str(stats), "--", program, "12", "4")
    assert result.returncode == 0, result.stderr
    assert result.stdout == "48 MiB copied and compared\n"
    document = json.loads(stats.read_text())
    (device,) = document["devices"]
    assert device["budget_bytes"] == 64 << 20
    assert 48 << 20 <= device["peak_allocated_bytes"] <= 64 << 20
    assert document["coverage"]["calls"]["cuMemAlloc_v2"] == 12
    assert document["coverage"]["warnings"] == [] and document["coverage"]["copies"] == 24


def test_a_program_without_python_at_half_its_memory(firn, program, tmp_path, spill_dir):
    stats = tmp_path / "stats.json"
    result = firn("run", *SOFTWARE, "--gpu-memory", "64MiB", "--budget", "48MiB", "--host", "16MiB",
                  "--dir", str(spill_dir), "--stats", str(stats), "--", program, "24", "4")
    assert result.returncode == 0, result.stderr
    assert result.stdout == "96 MiB copied and compared\n"
    document = json.loads(stats.read_text())
    (device,) = document["devices"]
    assert device["peak_device_bytes"] <= 48 << 20 <= device["spilled_bytes"]
    assert device["faulted_bytes"] > 0 and document["store"]["written_bytes"] > 0


def test_its_status_and_words_are_its_own(firn, program, tmp_path):
    result = firn("run", *SOFTWARE, "--", program, "nonsense", "4")
    assert result.returncode == 9 and result.stderr == "copies COUNT MEBIBYTES\n"


def test_who_used_no_driver_writes_nothing(firn, tmp_path):
    stats = tmp_path / "stats.json"
    assert firn("run", *SOFTWARE, "--stats", str(stats), "--", "true").returncode == 0
    assert not stats.exists()


def test_who_used_no_memory_writes_what_was_asked(firn, program, tmp_path):
    stats = tmp_path / "stats.json"
    result = firn("run", *SOFTWARE, "--stats", str(stats), "--", program, "0", "4")
    assert result.returncode == 0, result.stderr
    document = json.loads(stats.read_text())
    assert document["devices"] == [] and document["store"]["kind"] == "none"
    assert "cuDeviceGet" in document["coverage"]["passed"]
    # It is nobody else's that it would replace.
    stats.write_text("of another process")
    assert firn("run", *SOFTWARE, "--stats", str(stats), "--", program, "0",
                "4").returncode == 0
    assert stats.read_text() == "of another process"


def test_doctor_tells_what_was_asked_and_seen(firn, program):
    result = firn("doctor", *SOFTWARE, "--json", "--", program, "3", "4")
    assert result.returncode == 0, result.stderr
    assert "12 MiB copied and compared" in result.stderr  # standard output is the report's
    report = json.loads(result.stdout)
    assert report["command"] == [program, "3", "4"] and report["status"] == 0
    (process,) = report["processes"]
    coverage = process["coverage"]
    assert "cuMemAlloc_v2" in coverage["hooked"] and "cuCtxSetCurrent" in coverage["passed"]
    assert coverage["calls"]["cuMemAlloc_v2"] == 3 and coverage["driver"].endswith("libcuda.so.1")
    assert any("dlmopen" in words for words in report["never_seen"])
    text = firn("doctor", *SOFTWARE, "--", program, "3", "4").stdout
    assert f"driver {coverage['driver']}" in text
    assert "cuMemAlloc_v2:3" in text and "dlmopen" in text


KERNEL = """
extern const unsigned add_one_params[][2];
const unsigned add_one_params[][2] = {{0, 8}, {0, 0}};
void add_one(void** params, const unsigned grid[3], const unsigned block[3]);
void add_one(void** params, const unsigned grid[3], const unsigned block[3]) {
  ++**(int**)params[0];
  (void)grid, (void)block;
}
"""


def test_launches_are_counted_and_those_that_do_not_come_are_a_warning(firn, program, tmp_path):
    source = tmp_path / "kernel.c"
    source.write_text(KERNEL)
    module = tmp_path / "kernel.so"
    subprocess.run([shutil.which("cc"), "-shared", "-fPIC", "-o", module, source], check=True)

    def coverage(launches):
        result = firn("doctor", *SOFTWARE, "--json", "--", program, "2", "4", str(module),
                      str(launches))
        assert result.returncode == 0, result.stderr
        (process,) = json.loads(result.stdout)["processes"]
        return process["coverage"]

    seen = coverage(5)
    assert seen["launches"] == 5 and seen["parameters_scanned"] == 5 and seen["warnings"] == []
    (warning,) = coverage(0)["warnings"]
    assert "Firn saw no launch" in warning


def test_doctor_has_the_commands_status(firn, program):
    result = firn("doctor", *SOFTWARE, "--json", "--", "bash", "-c", f"{program} 1 4; {program} 1 "
                  "4; exit 5")
    assert result.returncode == 5, result.stderr
    report = json.loads(result.stdout)
    assert report["status"] == 5 and len(report["processes"]) == 2


def test_doctor_says_when_no_driver_was_asked_for(firn):
    result = firn("doctor", *SOFTWARE, "--json", "--", "true")
    (warning,) = json.loads(result.stdout)["warnings"]
    assert "Firn saw no process of this command" in warning


def test_bad_words_with_a_command(firn):
    refused(firn("doctor", "--dir", "/tmp", "--", "true"), "--dir", "COMMAND")
    refused(firn("doctor", "--device", "gpu", "--", "true"), "--device", "gpu")
    result = firn("doctor", *SOFTWARE, "--", "/nonexistent/program")
    assert result.returncode == 127 and "/nonexistent/program" in result.stderr


def test_programs_that_nothing_is_preloaded_into_are_named(firn, tmp_path):
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler")
    source = tmp_path / "static.c"
    source.write_text('const char mark[] = "libcuda.so.1";\n'
                      "int main(void) { return mark[0] != 'l'; }\n")
    path = tmp_path / "static"
    if subprocess.run([compiler, "-static", "-o", path, source], capture_output=True,
                      check=False).returncode != 0:
        pytest.skip("no static C library")
    result = firn("run", *SOFTWARE, "--", str(path))
    assert result.returncode == 0 and "statically linked" in result.stderr
    subprocess.run([compiler, "-o", path, source], check=True)
    assert firn("run", *SOFTWARE, "--", str(path)).stderr == ""
