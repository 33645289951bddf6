"""Files that the commands write: the user's alone where they are new, and no symbolic link is
followed, as with traces and statistics (backing/output_file.h)."""

import os
import shutil
import stat
import subprocess

import pytest
from firn_command import ROOT, clean_environment, find_binary, refused
from made_trace import HEADER

DATA = ROOT / "tests" / "data"
SIMULATE = ["simulate", str(DATA / "layers"), "--gpu-memory", "340MiB", "--policy", "age"]
OPS = "op,name,inputs,outputs,mutates\n0,mm,x w,a,\n1,relu,a,b,\n"
STORAGES = "storage,bytes,kind\nw,100,param\nx,50,batch\na,30,temporary\nb,20,temporary\n"


@pytest.fixture
def commands(tmp_path):
    """Each command that writes a file: (words, the option with a name as its file, the names)."""
    (tmp_path / "x.ops.csv").write_text(OPS)
    (tmp_path / "x.storages.csv").write_text(STORAGES)
    (tmp_path / "job.csv").write_text(HEADER + "1,alloc,0,0,4096,1,\n2,free,0,0,4096,1,\n")
    return {"layout": (["layout", str(DATA / "buffers.csv"), "-o"], [""]),
            "order": (["order", str(tmp_path / "x"), "-o"], [".order.csv", ".layout.csv"]),
            "timeline": ([*SIMULATE, "--timeline"], [""]),
            "report": (["report", str(tmp_path / "job.csv"), "-o"], [""])}


COMMANDS = ["layout", "order", "timeline", "report"]


@pytest.mark.parametrize("command", COMMANDS)
def test_a_new_file_is_its_owner_s_alone(firn, tmp_path, commands, command):
    words, ends = commands[command]
    old = os.umask(0)
    try:
        done = firn(*words, str(tmp_path / "out"))
    finally:
        os.umask(old)
    assert done.returncode == 0, done.stderr
    for end in ends:
        path = tmp_path / f"out{end}"
        assert stat.S_IMODE(path.stat().st_mode) == 0o600 and path.stat().st_size > 5


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("there", [True, False])
def test_a_symbolic_link_is_refused(firn, tmp_path, commands, command, there):
    words, ends = commands[command]
    for end in ends:
        others, link = tmp_path / "others", tmp_path / f"out{end}"
        if there:
            others.write_text("precious")
        link.symlink_to(others)
        refused(firn(*words, str(tmp_path / "out")), "is a symbolic link, which is not followed",
                f"{words[-1]} ")
        assert link.is_symlink() and others.exists() == there
        assert not there or others.read_text() == "precious"
        link.unlink()


# access() is the last that a command asks of its file's place before it computes.
LINKS = """
#include <stdlib.h>
#include <unistd.h>
int access(const char* path, int mode) {
  const char* made = getenv("LINK_MADE");
  if (made && (mode & W_OK)) (void)!symlink(getenv("LINK_TO"), made);
  return faccessat(-100, path, mode, 0);
}
"""


@pytest.fixture(scope="module")
def links(tmp_path_factory):
    """A library with which a link comes while the command runs."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler")
    folder = tmp_path_factory.mktemp("links")
    (folder / "links.c").write_text(LINKS)
    subprocess.run([compiler, "-shared", "-fPIC", "-o", folder / "links.so", folder / "links.c"],
                   check=True)
    return str(folder / "links.so")


@pytest.mark.parametrize("command", COMMANDS)
def test_a_link_that_comes_meanwhile_is_not_followed(firn, tmp_path, commands, links, command):
    words, ends = commands[command]
    link, others = tmp_path / f"out{ends[0]}", tmp_path / "others"
    others.write_text("precious")
    done = firn(*words, str(tmp_path / "out"), environment={
        "LD_PRELOAD": links, "LINK_MADE": str(link), "LINK_TO": str(others)})
    assert link.is_symlink() and others.read_text() == "precious"
    assert done.returncode not in (0, -6, -11) and "is a symbolic link" in done.stderr, done.stderr


def test_a_drawing_is_its_owner_s_alone(firn, tmp_path):
    out, link = tmp_path / "out.png", tmp_path / "link.png"
    link.symlink_to(out)
    words = ("layout", str(DATA / "buffers.csv"), "--plot")
    refused(firn(*words, str(link)), "is a symbolic link, which is not followed", "--plot ")
    assert not out.exists()
    done = firn(*words, str(out))
    if done.returncode == 2 and "matplotlib" in done.stderr:
        pytest.skip(done.stderr.strip())
    assert done.returncode == 0 and stat.S_IMODE(out.stat().st_mode) == 0o600, done.stderr
    assert out.read_bytes().startswith(b"\x89PNG")
    # A drawing that fails leaves nothing, and a file that was there as it was.
    for text in (None, "before"):
        odd = tmp_path / "out.odd"
        if text:
            odd.write_text(text)
        assert firn(*words, str(odd)).returncode != 0
        assert (odd.read_text() if text else odd.exists()) == (text or False)


@pytest.mark.parametrize("command", ["layout", "timeline"])
def test_what_is_there_is_emptied_and_keeps_its_mode(firn, tmp_path, commands, command):
    words, _ = commands[command]
    out = tmp_path / "out"
    out.write_text("before " * 100_000)
    out.chmod(0o644)
    assert firn(*words, str(out)).returncode == 0
    assert "before" not in out.read_text() and stat.S_IMODE(out.stat().st_mode) == 0o644
    # Nor is a hard link cut off, as a new file would.
    twin = tmp_path / "twin"
    os.link(out, twin)
    out.write_text("")
    assert firn(*words, str(out)).returncode == 0 and twin.stat().st_size > 20


@pytest.mark.parametrize("command, name", [("layout", "/dev/stdout"), ("timeline", "/dev/stdout"),
                                           ("layout", "/dev/fd/1"), ("report", "/dev/fd/1")])
def test_standard_output_is_written_to(firn, tmp_path, commands, command, name):
    """(A page that was renamed to /dev/stdout would be there instead of it: not tried by that
    name.)"""
    words, _ = commands[command]
    wanted = tmp_path / "wanted"
    assert firn(*words, str(wanted)).returncode == 0
    done = firn(*words, name)  # a pipe
    assert done.returncode == 0 and done.stdout.startswith(wanted.read_text()), done.stderr
    with open(tmp_path / "file", "w") as file:
        done = subprocess.run([find_binary(), *words, name], env=clean_environment(), stdout=file,
                              timeout=120)
    assert done.returncode == 0 and (tmp_path / "file").stat().st_size >= 20


def test_a_dash_is_a_file_s_name(firn, tmp_path, commands):
    assert firn(*commands["layout"][0], "-", cwd=tmp_path).returncode == 0
    assert (tmp_path / "-").read_text().startswith("id,lower,upper,size,offset\n")
