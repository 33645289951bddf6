"""Nothing is thrown through a door for C: each function with C's linkage, of every library of
Firn's that programs load, is noexcept, and so are the entries in front of the driver's."""

import os
import pathlib
import re
import shutil
import subprocess

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = (ROOT / (os.environ.get("FIRN_TEST_BUILD") or "build")).resolve()
SOURCES = [path for folder in ("allocator", "pytorch_plugin", "include/firn")
           for path in sorted((ROOT / folder).rglob("*")) if path.suffix in (".cpp", ".h", ".inc")]
# The driver's declarations are its own, and the software GPU is for tests.
OTHERS = {"cuda_abi.h", "cuda_types.h", "software_gpu.h"}
LIBRARIES = {"firn": ["allocator/libfirn.so"], "behind": ["allocator/preload/libfirn_behind.so"],
             "torch": sorted(str(path.relative_to(BUILD))
                             for path in BUILD.glob("pytorch_plugin/libfirn_torch*.so")
                             if "_ops" not in path.name) or ["pytorch_plugin/libfirn_torch.so"]}


def plain(text):
    """Without comments, strings' contents and lines of the preprocessor (but see macros())."""
    text = re.sub(r"//[^\n]*|/\*.*?\*/", "", text, flags=re.S)
    text = re.sub(r'"(?!C")(?:[^"\\\n]|\\.)*"', '""', text)
    return re.sub(r"^[ \t]*#(?:[^\n\\]|\\.)*$", "", text, flags=re.M | re.S)


def statements(text):
    """The heads of declarations and definitions at the top of `text`, until its brace closes."""
    heads, head, depth = [], "", 0
    for letter in text:
        depth += (letter == "{") - (letter == "}")
        if depth < 0:
            break
        if depth == 0 and letter in ";}":
            heads.append(head)
            head = ""
        elif depth == 0 or (depth == 1 and letter == "{"):
            head += letter
    return [re.sub(r"\s+", " ", each).strip() for each in heads]


def macros(text):
    """Names that stand for `extern "C"`."""
    return re.findall(r'^#define (\w+) extern "C"', text, flags=re.M)


def doors(text):
    """{name: head} of the functions with C's linkage in a file."""
    words = ['extern "C"', *macros(text)]
    code, heads = plain(text), []
    for found in re.finditer("|".join(rf"(?<!\w){re.escape(word)}(?!\w)" for word in words), code):
        rest = code[found.end():]
        if rest.lstrip().startswith("{"):
            heads += statements(rest.lstrip()[1:])
        else:
            heads.append(re.sub(r"\s+", " ", re.split("[;{]", rest, maxsplit=1)[0]).strip())
    found = {}
    for head in heads:
        head = re.sub(r"__attribute__\s*\(\(.*?\)\)\s*\)?", "", head).strip(" {")
        if "(" in head and not re.match(r"(typedef|struct|enum|union|using|static_assert)\b", head):
            found[re.search(r"(\w+)\s*\(", head).group(1)] = head
    return found


def throws(head):
    return not re.search(r"\)\s*(?:noexcept|FIRN_NOEXCEPT|FIRN_NOTHROW)(?:\s*\{)?$", head)


def all_doors():
    return {f"{path.relative_to(ROOT)}: {name}": head for path in SOURCES
            if path.name not in OTHERS for name, head in doors(path.read_text()).items()}


def test_each_is_noexcept():
    found = all_doors()
    files = {each.split(":")[0] for each in found}
    assert {"allocator/runtime/firn_c.cpp", "allocator/preload/start.cpp", "include/firn/firn.h",
            "allocator/preload/stand_in.h", "pytorch_plugin/exports.cpp"} <= files
    assert [name for name, head in found.items() if throws(head)] == []


@pytest.mark.parametrize("library", LIBRARIES)
def test_the_sources_have_each_that_a_library_exports(library):
    """A door that is written in another way is not overlooked."""
    if shutil.which("nm") is None:
        pytest.skip("no nm")
    known = {each.split(": ")[1] for each in all_doors()}
    for path in LIBRARIES[library]:
        if not (BUILD / path).exists():
            pytest.skip(f"{BUILD / path} is not built")
        listed = subprocess.run(["nm", "-D", "--defined-only", BUILD / path], capture_output=True,
                                text=True, check=True).stdout
        exported = {words[2].split("@")[0] for words in map(str.split, listed.splitlines())
                    if words[1] in "TWi"}
        # (Of a library that is linked in nothing is offered: a program may have its own liburing.)
        own = {name for name in exported if not name.startswith("_Z")} - {"_init", "_fini"}
        assert own and own <= known, own - known


def test_in_front_of_the_driver_is_no_code_that_throws():
    """It is C and assembly: nothing of it is named above."""
    text = (ROOT / "allocator/preload/meson.build").read_text()
    sources = re.search(r"preload_lib = shared_library\(([^)]*?)dependencies", text, re.S).group(1)
    assert re.findall(r"\.(\w+)'", sources) == ["S", "c", "c", "c"]


ATTRIBUTE = '__attribute__((visibility("default")))'


@pytest.mark.parametrize("text", [
    'extern "C" int firn_x(const char* a) {\n  return 0;\n}\n',
    f'extern "C" {ATTRIBUTE} const T* firn_x(\n    int a) {{ }}',
    'extern "C" {\nint firn_y(int) noexcept { if (1) { } return 0; }\nint firn_x(int);\n}',
    f'#define API extern "C" {ATTRIBUTE}\nAPI void firn_x() {{',
    '#ifdef __cplusplus\nextern "C" {\n#endif\nAPI int firn_x(int* a /* ) noexcept */);\n}',
])
def test_one_that_throws_is_found(text):
    assert [each for each, head in doors(text).items() if throws(head)] == ["firn_x"]


PROGRAM = r"""
#include "allocator/preload/handlers.h"
#include <cstdio>
#include <new>
namespace firn::preload {
CUresult throws_number(int number) { if (number) throw number; return CUDA_SUCCESS; }
CUresult throws_no_memory(int number) { if (number) throw std::bad_alloc(); return CUDA_SUCCESS; }
}
using namespace firn::preload;
using Entry = CUresult (*Real::*)(int);
int main() {
  static Real real;
  real_entries = &real;
  live = true;
  using Number = Door<&throws_number, Entry(nullptr)>;
  using NoMemory = Door<&throws_no_memory, Entry(nullptr)>;
  static_assert(noexcept(Number::enter(1)) && noexcept(NoMemory::enter(1)));
  std::printf("%d %d %d %d depth %d\n", Number::enter(0), Number::enter(7), NoMemory::enter(0),
              NoMemory::enter(7), depth);
}
"""


def test_whatever_a_handler_throws_is_an_answer(tmp_path):
    compiler = shutil.which("c++")
    if compiler is None:
        pytest.skip("no C++ compiler")
    (tmp_path / "doors.cpp").write_text(PROGRAM)
    subprocess.run([compiler, "-std=c++20", "-I", ROOT, "-I", ROOT / "include", "-o",
                    tmp_path / "doors", tmp_path / "doors.cpp"], check=True)
    done = subprocess.run([tmp_path / "doors"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 and done.stdout == "0 999 0 2 depth 0\n", (done, done.stderr)
