"""Names of files may be any bytes: a finished job ends well, and what it wrote can be read."""

import json
import os
import subprocess

import pytest

NAMES = {"no-utf8": b"\xff\xfe", "newline": b"a\nb", "quotes": b"\"'\\", "script": b"<script>",
         "blank": b" x ", "escape": b"\x1b[31m"}

SCRIPT = """
    import torch
    x = [torch.ones(2 << 20, device="cuda") for _ in range(8)]
    for _ in range(3):
        for each in x:
            each.mul_(1)
    torch.cuda.synchronize()
    print(x[0][0].item())
    import firn
    print(firn.stats()["devices"][0]["lost_blocks"])
"""


@pytest.mark.parametrize("name", NAMES.values(), ids=NAMES)
def test_any_name_of_a_directory_or_file(run, tmp_path, name):
    folder = os.path.join(os.fsencode(tmp_path), name)
    os.makedirs(os.path.join(folder, b"spill"))
    stats, trace = os.path.join(folder, b"stats.json"), os.path.join(folder, b"trace.csv")
    conf = "backend:firn,firn_budget:32MiB,firn_watch:0,firn_test_allow_tmpfs:1"
    done = run(SCRIPT, conf=conf, FIRN_DIR=os.fsdecode(os.path.join(folder, b"spill")),
               FIRN_STATS=os.fsdecode(stats), FIRN_TRACE=os.fsdecode(trace))
    assert done.stdout.split() == ["1.0", "0"]
    with open(stats, encoding="utf-8") as file:
        document = json.load(file)
    assert document["store"]["dirs"][0] == os.path.join(folder, b"spill").decode(errors="replace")
    assert os.listdir(os.path.join(folder, b"spill")) == []
    with open(trace, "rb") as file:
        assert file.read().count(b"\n") > 10


def test_a_report_of_a_job_with_such_names(run, tmp_path, paths):
    folder = os.path.join(os.fsencode(tmp_path), b"\xff<script>\n")
    os.makedirs(folder)
    trace, page = os.path.join(folder, b"trace.csv"), os.path.join(folder, b"page.html")
    run(SCRIPT, conf="backend:firn,firn_budget:48MiB,firn_watch:0", FIRN_TRACE=os.fsdecode(trace))
    done = subprocess.run([paths.firn, "report", trace, "-o", page], capture_output=True)
    assert done.returncode == 0, done.stderr
    with open(page, "rb") as file:
        text = file.read()
    assert text.decode("utf-8") and b"<script>\n/" not in text
