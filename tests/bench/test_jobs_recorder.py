"""bench/jobs/recorder.py: what each kernel reads and writes, beside the bytes that the same
operator read and wrote in a step that ran."""

import json
import pathlib
import subprocess
import sys

import pytest

HERE = pathlib.Path(__file__).resolve().parent


@pytest.fixture(scope="module")
def cases():
    done = subprocess.run([sys.executable, str(HERE / "recorder_cases.py")], capture_output=True,
                          text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("name", ["llama", "bert", "t5", "gpt", "vit", "resnet"])
def test_inputs_and_outputs_are_what_is_read_and_written(cases, name):
    assert cases[name]["checked"] > 80
    assert cases[name]["wrong"] == []
