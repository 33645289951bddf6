"""bench/wheel/old_sysroot.py: the libraries without code that the wheel is linked against."""

import pathlib
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "bench/wheel"))
import old_sysroot  # noqa: E402

# As zig makes glibc's: each name has a place of its own.
APART = "char **__environ; char **environ; char **_environ;\n"
PROGRAM = "extern char **environ; int main(void) { return environ == 0; }\n"


def copied(folder, library):
    """The variables of `library` that a program which names `environ` takes over."""
    (folder / "program.c").write_text(PROGRAM)
    old_sysroot.run("gcc", "-pie", "-nostartfiles", "-Wl,-e,main", folder / "program.c", library,
                    "-o", folder / "program")
    said = old_sysroot.run("readelf", "-rW", folder / "program")
    return {line.split()[4].split("@")[0] for line in said.splitlines() if "R_X86_64_COPY" in line}


def test_a_program_that_uses_environ_has_glibcs_own(tmp_path):
    library = tmp_path / "libc.so.6"
    (tmp_path / "apart.c").write_text(APART)
    subprocess.run(["gcc", "-shared", "-fPIC", "-fno-common", "-nostdlib", tmp_path / "apart.c", "-o",
                    library], check=True)
    assert copied(tmp_path, library) == {"environ"}  # glibc would set another variable
    old_sysroot.join_aliases(library)
    assert "__environ" in copied(tmp_path, library)
