"""bench/wheel/aarch64.sh: Firn compiles for aarch64, with Debian's cross compiler. (Nothing of it
runs here.)"""

import pathlib
import subprocess

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "bench/wheel/aarch64.sh"
AARCH64 = 183  # e_machine of an ELF header


def run(*words):
    return subprocess.run(["bash", str(SCRIPT), *words], capture_output=True, text=True,
                          stdin=subprocess.DEVNULL)


def test_a_word_that_it_does_not_know_is_refused():
    done = run("nonsense")
    assert done.returncode == 2 and "unknown word nonsense" in done.stderr


@pytest.mark.long
def test_everything_but_the_plugin_compiles():
    done = run()
    if done.returncode == 77:
        pytest.skip(done.stderr.splitlines()[0])
    assert done.returncode == 0, done.stderr
    made = [line for line in done.stdout.splitlines() if line.startswith("build/aarch64/")]
    assert {pathlib.Path(name).name for name in made} == {
        "firn", "libfirn_preload.so", "libfirn_behind.so", "libfirn.so", "libcuda.so.1"}
    for name in made:
        header = (ROOT / name).read_bytes()[:20]
        assert header[:4] == b"\x7fELF" and int.from_bytes(header[18:20], "little") == AARCH64, name
