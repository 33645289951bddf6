"""bench/deepspeed/bytes_moved.py: figures are of steady steps and of runs alike, on made runs; the
page has them. (DeepSpeed itself is installed by the bench alone.)"""

import array
import json
import pathlib
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path += [str(ROOT / "bench/deepspeed"), str(ROOT / "bench/jobs")]
import bytes_moved  # noqa: E402
import published_page  # noqa: E402

MIB = 1 << 20


def made(peak, to_device, to_host, steps=8, first=10, digest="a", stats=None, files=(0, 0),
         saved=None, apart=0):
    """A run whose first step copies `first` times as much."""
    lines, total = [f"peak {peak}", f"sha256 {digest}"], 0
    lines += [f"saved {saved}"] if saved else []
    for step in range(steps):
        total += first if step == 0 else 1
        lines += [f"loss {step + apart}", "step " + json.dumps({
            "copied_to_device_bytes": total * to_device, "copied_to_host_bytes": total * to_host,
            "files_read_bytes": total * files[0], "files_write_bytes": total * files[1]})]
    return bytes_moved.script_runs.Run(0, "\n".join(lines), 1.0, {"used_bytes_peak": peak}, stats)


DEVICE = {key: 1 for key in ("spilled_bytes", "faulted_bytes", "prefetched_bytes",
                             "host_use_bytes")}


def compared(digest="a", case=0, theirs="a", apart=0):
    asked = []

    def native(stage, offload):
        asked.append((stage, offload))
        return made(301 * MIB, 5, 7, digest=theirs, apart=apart) if offload != "none" \
            else made((600 + stage) * MIB, 0, 0)

    def with_firn(stage, budget, files):
        asked.append((stage, budget, files))
        return made(budget, 20, 30, digest=digest, files=(2 * MIB, 3 * MIB) if files else (0, 0),
                    stats={"devices": [DEVICE], "store": {"written_bytes": 9, "read_bytes": 8}})
    return bytes_moved.compare(bytes_moved.CASES[case], native, with_firn, "4GiB"), asked


def test_figures_are_of_steady_steps():
    whole = {"to_device": 5, "to_host": 7, "from_files": 3, "to_files": 4}
    assert bytes_moved.each_step(made(1, 5, 7, files=(3, 4))) == whole
    assert bytes_moved.each_step(made(1, 5, 7, files=(3, 4), steps=5)) == whole
    bare = made(1, 5, 7)
    bare.text = bare.text.replace("files_", "other_")  # a kernel without /proc/self/io
    assert bytes_moved.each_step(bare) == {"to_device": 5, "to_host": 7}


def test_firn_has_the_memory_that_deepspeed_reached():
    found, asked = compared()
    assert found["budget_bytes"] == 300 * MIB          # whole granules
    assert (2, 300 * MIB, False) in asked and (0, 300 * MIB, False) in asked
    assert (2, "optimizer") in asked and not any(each[2:] == (True,) for each in asked)
    same, plain = found["firn"]
    assert (same["to_device"], same["to_host"]) == (20, 30) and same["equal"] and plain["equal"]
    assert plain["unlimited"]["peak_bytes"] == 600 * MIB   # of that program, not of DeepSpeed's
    assert "bits equal" in bytes_moved.line(found)


def test_files_are_used_beside_infinity_alone():
    found, asked = compared(case=2)
    assert (3, "nvme") in asked and (3, 300 * MIB, True) in asked and (0, 300 * MIB, True) in asked
    by_host, _, by_files, _ = found["firn"]
    assert (by_host["to_files"], by_files["to_files"]) == (0, 3 * MIB)
    assert "(4GiB) first, to files never" in by_host["copies"]
    assert "(64MiB) first, to files once that is full" in by_files["copies"]
    assert by_files["store"] == {"written_bytes": 9, "read_bytes": 8}
    assert "with files (603 MiB) with Firn: 0 MiB out, 0 in (3 MiB to files, 2 from them)" in \
        bytes_moved.line(found)
    found, asked = compared(case=1)
    assert (3, "all") in asked and not any(each[2:] == (True,) for each in asked)


def test_how_far_deepspeed_is_from_its_plain_run_is_said(tmp_path):
    found, _ = compared()
    assert found["deepspeed"]["equal"] and "differences" not in found["deepspeed"]
    found, _ = compared(theirs="b", apart=.5)
    theirs = found["deepspeed"]
    assert not theirs["equal"] and theirs["differences"] == {"losses_most": .5}
    assert "by DeepSpeed, bits DIFFER" in bytes_moved.line(found)
    runs = []
    for name, values in (("a", [1, 2, 3, 4]), ("b", [1, 2, 3, 6])):
        array.array("f", values).tofile((tmp_path / name).open("wb"))
        runs.append(made(1, 0, 0, saved=tmp_path / name))
    assert bytes_moved.differences(*runs) == {
        "losses_most": 0, "parameters_most": 2, "parameters_part": .25}


def test_an_operator_that_cannot_be_built_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(bytes_moved.LeftOut, match="needs .*apt-get install g.*ninja"):
        bytes_moved.aio(None, None, {})
    compiler = tmp_path / "g++"
    compiler.write_text("#!/bin/sh\nexit 1\n")
    (tmp_path / "ninja").write_text("#!/bin/sh\n")
    for each in tmp_path.iterdir():
        each.chmod(0o755)
    with pytest.raises(bytes_moved.LeftOut, match="apt-get install libaio-dev"):
        bytes_moved.aio(None, None, {})


def test_other_bits_are_said():
    found, _ = compared(digest="b")
    assert not any(each["equal"] for each in found["firn"])
    assert "bits DIFFER" in bytes_moved.line(found)


def test_a_run_that_fails_is_left_out_with_its_last_word():
    failed = bytes_moved.script_runs.Run(1, "a\nno libaio\n", 1.0, None, None)
    with pytest.raises(bytes_moved.LeftOut, match="ended with 1: no libaio"):
        bytes_moved.ended(failed, "it")


def test_the_page_has_bytes_beside_bytes_and_no_speed(tmp_path):
    found, _ = compared(theirs="b", apart=.5)
    document = {"cases": [found], "left_out": ["ZeRO-Infinity: no libaio"], "date": "2026-01-01",
                "command": "bench/deepspeed/bytes_moved.py", "deepspeed": "deepspeed==0",
                "machine": {"processor": "p", "cores": 2}}
    (tmp_path / "deepspeed-bytes-2026-01-01.json").write_text(json.dumps(document))
    rows = list(published_page.deepspeed(tmp_path))
    assert [each.what.split(",")[0] for each in rows[:2]] == ["ZeRO-Offload"] * 2
    assert rows[0].ours.startswith("0.0 MiB out, 0.0 in; 0.0 to files")
    assert "p, 2 cores" in rows[0].machine
    assert rows[0].theirs.endswith("bits differ (losses by up to 0.5)")
    assert "DeepSpeed: out: gradients" in rows[0].why and "Firn: out and in" in rows[0].why
    assert "no libaio" in rows[2].why and not rows[2].ours
    assert "1.47" in rows[-1].theirs and not rows[-1].ours
    assert [each.ours for each in published_page.deepspeed(tmp_path / "none")] == [""]


def test_nothing_is_installed_to_say_how_it_is_used():
    said = subprocess.run([sys.executable, str(ROOT / "bench/deepspeed/bytes_moved.py"), "--help"],
                          capture_output=True, text=True)
    assert said.returncode == 0 and "--only" in said.stdout
