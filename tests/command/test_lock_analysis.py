"""Functions that need the engine's lock have it, and those that wait do not: clang proves it
(include/firn/thread_safety.h says how), for all sources that an engine's lock guards."""

import concurrent.futures
import json
import os
import pathlib
import re
import shutil
import subprocess

import pytest
from call_graph import flags

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = (ROOT / (os.environ.get("FIRN_TEST_BUILD") or "build")).resolve()

FOLDERS = ("blocks", "engine", "lifetimes", "movement", "policy")
# The rest of memory/ has locks of its own, or none.
MEMORY = ("device_health", "frames", "host_tier", "shared_frames")
SOURCES = {folder: sorted((ROOT / "allocator" / folder).glob("*.cpp")) for folder in FOLDERS}
SOURCES["memory"] = [ROOT / "allocator/memory" / f"{name}.cpp" for name in MEMORY]


def allocators_flags():
    """Of the allocator's sources in this build, as far as they say what a source means."""
    for entry in json.loads((BUILD / "compile_commands.json").read_text()):
        if entry["output"].startswith("allocator/libfirn_allocator.a.p/"):
            return flags(entry["command"])
    raise AssertionError(f"{BUILD} does not compile the allocator")


@pytest.fixture(scope="module")
def refused(tmp_path_factory):
    """refused(name, text): clang's lines, with its status."""
    clang = shutil.which("clang++")
    if clang is None:
        pytest.skip("there is no clang++ (bench/setup.sh --tests installs it)")
    folder = tmp_path_factory.mktemp("locks")
    command = [clang, "-fsyntax-only", "-Wno-everything", "-Wthread-safety",
               "-Werror=thread-safety", "-ferror-limit=0", *allocators_flags(),
               "-include", ROOT / "tests/fuzz/source_location.h"]

    def run(name, text):
        path = folder / f"{name}.cpp"
        path.write_text(text)
        done = subprocess.run([*command, path], cwd=BUILD, capture_output=True, text=True,
                              timeout=600)
        return done.returncode, done.stdout + done.stderr

    return run


def test_every_function_has_the_lock_that_it_needs(refused):
    """A folder's sources are read together: most of the time is headers."""
    def read(folder):
        assert SOURCES[folder], folder
        return refused(folder, "".join(f'#include "{path}"\n' for path in SOURCES[folder]))

    with concurrent.futures.ThreadPoolExecutor(2) as two:
        found = [words for status, words in two.map(read, SOURCES) if status != 0]
    assert not found, "\n".join(found)


WRONG = """
#include "allocator/movement/mapper.h"

namespace firn {
struct Job {
  DriverTimedMutex& mutex;
  Mapper& mapper;
  Clock& clock;
  Block& block;

  void drop() FIRN_HELD { mapper.drop_claims(); }
  template <class Act>
  void act(Act&& act) FIRN_HELD {
    act();
  }

  void right() {
    LockedEngine lock(mutex);
    drop();
    act([this]() FIRN_HELD { drop(); });
    {
      const UnlockedEngine unlocked(lock);
      clock.wait(1);
    }
    block.mapped = 0;
    lock.unlock();
    clock.wait(1);
    if (lock.try_lock()) drop();
  }

  void without_the_lock() {
    drop();  // calling function 'drop' requires holding lock 'engine_lock'
  }
  void a_member() {
    block.mapped = 0;  // writing variable 'mapped' requires holding lock 'engine_lock'
  }
  void waits_with_it() FIRN_HELD {
    clock.wait(1);  // cannot call function 'wait' while lock 'engine_lock' is held
  }
  void while_it_is_released(LockedEngine& lock) FIRN_HELD {
    const UnlockedEngine unlocked(lock);
    drop();  // calling function 'drop' requires holding lock 'engine_lock'
  }
  void takes_it_twice() FIRN_HELD {
    const LockedEngine lock(mutex);  // acquiring lock 'engine_lock' that is already held
  }  // expecting mutex 'engine_lock' to be held at the end of function
  void after_it_was_given_back() {
    LockedEngine lock(mutex);
    lock.unlock();
    drop();  // calling function 'drop' requires holding lock 'engine_lock'
  }
  void where_another_thread_has_it() {
    LockedEngine lock(mutex, std::defer_lock);
    if (!lock.try_lock()) drop();  // calling function 'drop' requires holding lock 'engine_lock'
  }
  void a_function_that_is_given() FIRN_HELD {
    act([this] {
      drop();  // calling function 'drop' requires holding lock 'engine_lock'
    });
  }
};
}  // namespace firn
"""


def test_what_is_wrong_is_refused(refused):
    status, words = refused("wrong", WRONG)
    assert status != 0
    expected = {(line, wrong.group(1)) for line, text in enumerate(WRONG.splitlines(), 1)
                if (wrong := re.search(r"^ .*[;}]  // (.*)$", text))}
    found = set(re.findall(r"wrong\.cpp:(\d+):\d+: error: (.*?)(?: exclusively)? \[-Werror", words))
    assert {(int(line), said) for line, said in found} == expected, words
    assert len(expected) == 9
