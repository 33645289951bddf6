"""Reading the configuration before torch does, and putting the allocator in."""

import importlib.util
import json
import random
import re
import subprocess

import pytest

from conftest import PYTHON, ROOT

_spec = importlib.util.spec_from_file_location("firn_startup",
                                               ROOT / "pytorch_plugin/firn/_startup.py")
startup = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(startup)


@pytest.mark.parametrize("conf, wanted, firn, rest", [
    ("", False, "", ""),
    ("backend:firn", True, "", ""),
    (" backend : firn , firn_budget:1GiB,", True, "firn_budget:1GiB", ""),
    ("max_split_size_mb:64,backend:firn,firn_dir:/a;/b,firn_host:1GiB", True,
     "firn_dir:/a;/b,firn_host:1GiB", "max_split_size_mb:64"),
    ("backend:native", False, "", "backend:native"),
    ("roundup_power2_divisions:[256:1,512:2],backend:firn", True, "",
     "roundup_power2_divisions:[256:1,512:2]"),
    ("firn_budget:1GiB", False, "firn_budget:1GiB", ""),
])
def test_split_conf(conf, wanted, firn, rest):
    assert startup.split_conf(conf) == (wanted, firn, rest)


def random_conf(generator):
    pieces = ["backend:firn", "backend:native", "backend", ":", ",", " ", "[", "]", "firn_budget:",
              "1GiB", "firn_dir:/a;/b", "max_split_size_mb:64", "a:b:c", "\t", "firn_", "\u00e9"]
    return "".join(generator.choice(pieces) for _ in range(generator.randrange(12)))


def test_python_and_cxx_split_alike(run, tmp_path):
    """10,000 random texts; a failure prints the text."""
    confs = [random_conf(random.Random(seed)) for seed in range(10_000)]
    (tmp_path / "confs.json").write_text(json.dumps(confs))
    done = run("""
        import json, torch
        from firn import _libraries
        library = _libraries.load_plugin()
        for conf in json.load(open("confs.json")):
            print(json.dumps(_libraries.read_text(library.firn_torch_split_conf, conf.encode())))
    """, conf=None)
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(answers) == len(confs)
    for conf, answer in zip(confs, answers):
        wanted, firn, rest = startup.split_conf(conf)
        assert answer == "%d\n%s\n%s" % (wanted, firn, rest), repr(conf)


def started(environment):
    environment = dict(environment)
    startup.start(environment)
    return environment


def test_words_are_taken_out_and_kept():
    both = "max_split_size_mb:64,backend:firn,firn_host:1GiB"
    assert started({"PYTORCH_CUDA_ALLOC_CONF": both}) \
        == {"PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb:64",
            "FIRN_CONF": "backend:firn,firn_host:1GiB"}
    assert started({"PYTORCH_ALLOC_CONF": "backend:firn"}) == {"FIRN_CONF": "backend:firn"}
    assert started({"PYTORCH_ALLOC_CONF": "firn_host:1GiB",
                    "PYTORCH_CUDA_ALLOC_CONF": "backend:firn"}) \
        == {"FIRN_CONF": "backend:firn,firn_host:1GiB"}


@pytest.mark.parametrize("environment", [
    {}, {"PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb:64"},
    {"PYTORCH_CUDA_ALLOC_CONF": "firn_budget:1GiB"},  # torch refuses it by name
    {"PYTORCH_CUDA_ALLOC_CONF": "backend:native"}])
def test_nothing_is_changed_where_firn_was_not_asked_for(environment):
    assert started(environment) == environment


def test_another_backend_is_kept_for_a_refusal():
    assert started({"PYTORCH_CUDA_ALLOC_CONF": "backend:firn,backend:native"}) \
        == {"FIRN_CONF": "backend:firn,backend:native"}


@pytest.mark.parametrize("environment, words", [
    ({"PYTORCH_CUDA_ALLOC_CONF": "backend:Firn,firn_budget:1GiB"}, 'backend:firn'),
    ({"PYTORCH_ALLOC_CONF": "Backend:firn"}, 'backend:firn'),
    ({"PYTORCH_CUDA_ALLOC_CONF": "backend:firn firn_budget:1GiB"}, "commas"),
    ({"FIRN_BUDGET": "1GiB"}, "FIRN_BUDGET is set, but has no effect because Firn is off"),
    ({"FIRN_DIR": "/nvme0"}, "firn run")])
def test_who_nearly_asked_for_it_is_told_how(run, environment, words):
    assert words in startup.nearly_asked(environment)
    done = run("import torch", conf=None, **environment)
    assert words in done.stderr and done.stderr.count("RuntimeWarning") == 1, done.stderr


@pytest.mark.parametrize("environment", [
    {}, {"FIRN_BUDGET": ""}, {"PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb:64"},
    {"PYTORCH_CUDA_ALLOC_CONF": "backend:native", "FIRN_BUDGET": "1GiB"},
    {"PYTORCH_CUDA_ALLOC_CONF": "backend:cudaMallocAsync"}])
def test_nobody_else_is(environment):
    assert startup.nearly_asked(environment) == ""


def test_installs_itself(run):
    done = run("""
        import torch, firn
        assert firn.enabled() and firn.stats() == {}
        assert torch.cuda.get_allocator_backend() == "firn"
        x = torch.ones(1000, device="cuda")
        assert x.sum().item() == 1000
        assert torch.accelerator.memory_allocated() == torch.cuda.memory_allocated() == 4096
        assert firn.stats()["devices"][0]["budget_bytes"] == 64 << 20
        assert "64.00 MiB" in firn.memory_summary()
    """, conf="backend:firn,firn_budget:64MiB,pinned_num_register_threads:1")
    assert done.stderr == ""


def test_is_inherited_by_children(run):
    done = run("""
        import subprocess, sys
        print(subprocess.run([sys.executable, "-c",
            "import torch, firn; print(firn.enabled(), torch.cuda.get_allocator_backend())"],
            stdout=subprocess.PIPE, text=True, check=True).stdout)
    """)
    assert done.stdout.split() == ["True", "firn"]


def test_stays_out_where_it_was_not_asked_for(run):
    done = run("""
        import sys, torch
        import firn
        assert not firn.enabled() and firn.stats() == {}
        assert firn.memory_summary() == "Firn is not in use"
        assert torch.cuda.get_allocator_backend() == "native"
        x = torch.ones(1000, device="cuda")
        firn.pin(x), firn.cold(x), firn.prefetch(x), firn.unpin(x)  # no effect
        maps = open("/proc/self/maps").read()
        assert "libfirn_torch.so" not in maps
    """, conf=None)
    assert done.stderr == ""


def test_the_package_imports_no_torch(firn_environment):
    done = subprocess.run([PYTHON, "-c", "import sys, firn; assert 'torch' not in sys.modules\n"
                                         "assert 'ctypes' not in sys.modules"],
                          env=firn_environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


MALFORMED = {
    "backend:firn,firn_budget:10XB": "firn_budget",
    "backend:firn,firn_budget:0": "firn_budget",
    "backend:firn,firn_budget:-1": "firn_budget",
    "backend:firn,firn_bugdet:1GiB": "firn_budget",
    "backend:firn,firn_dir:relative": "firn_dir",
    "backend:firn,firn_dir:/nonexistent-directory": "firn_dir",
    "backend:firn,firn_policy:luck": "firn_policy",
    "backend:firn,backend:native": "backend:native",
}


@pytest.mark.parametrize("conf", MALFORMED)
def test_malformed_configuration(run, conf):
    done = run("""
        import torch  # works: the program may never use CUDA
        try:
            torch.cuda.init()
        except RuntimeError as error:
            print(str(error).splitlines()[0])
        else:
            print("started")
    """, conf=conf)
    (line,) = done.stdout.splitlines()
    assert MALFORMED[conf] in line and line != "started"


def test_a_budget_above_the_device(run):
    done = run("""
        import torch
        try:
            torch.ones(1, device="cuda")
        except RuntimeError as error:
            print(error)
    """, conf="backend:firn,firn_budget:2GiB")
    assert "firn_budget" in done.stdout and "1GiB" in done.stdout


@pytest.mark.parametrize("conf", ["backend:firn,firn_budget:10XB"])
def test_strict_ends_at_once(run, conf):
    done = run("import torch; print('went on')", conf=conf, status=2, FIRN_STRICT="1")
    assert done.stdout == ""
    (line,) = done.stderr.splitlines()
    assert line.startswith("firn: ") and "firn_budget" in line


def test_firn_words_alone_are_refused_by_torch(run):
    done = run("""
        import torch
        try:
            torch.cuda.init()
        except (RuntimeError, ValueError) as error:
            print(error)
    """, conf="firn_budget:1GiB")
    assert "firn_budget" in done.stdout


TOO_LATE = """
    import warnings, torch
    torch.empty(1, device="cuda")  # (no operator of the CPU's stands in here)
    from firn import _autoload
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            _autoload.load()
        except RuntimeError as error:
            print(error)
    print(*[each.message for each in caught])
    assert torch.cuda.get_allocator_backend() == "native"
"""


@pytest.mark.parametrize("words, says", [("", "firn_fallback:native goes on without Firn"),
                                         (",firn_fallback:native", "the native allocator stays")])
def test_too_late(run, words, says):
    """CUDA was started before the entry point ran."""
    done = run(TOO_LATE, conf="backend:firn" + words, TORCH_DEVICE_BACKEND_AUTOLOAD="0",
               FIRN_DEVICE="auto")
    (line,) = done.stdout.splitlines()[:1] if not words else done.stdout.splitlines()
    assert line.startswith("firn: CUDA was started before") and says in line


START_CUDA = """
    import os, sys, warnings
    from firn import _libraries
    _libraries._folders = lambda: [os.environ["FIRN_LIB"]]
    os.environ.pop("FIRN_BUILD", None)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        import torch
    print(*[each.message for each in caught if "firn" in str(each.message)])
    for start in (torch.cuda.init, lambda: torch.empty(1, device="cuda"), torch.cuda.synchronize):
        try:
            start()
            print("started", torch.cuda.get_allocator_backend())
        except RuntimeError as error:
            print(error)
    print(torch.ones(3).sum().item())
"""
FITS_OTHERS = (r"firn: built for torch 2\.4 and 2\.10, found 2\.1\d\.\S+: its binary interface "
               "differs; install a Firn that is built for it")


@pytest.fixture
def other_releases(tmp_path):
    """A folder of libraries for other releases of torch only."""
    for name in ("libfirn_torch-2.4.so", "libfirn_torch-2.10.so", "libfirn_torch_ops-2.4.so"):
        (tmp_path / name).write_text("")
    return tmp_path


def test_another_torch_does_not_start_cuda(run, other_releases):
    """One line each time; what needs no CUDA goes on."""
    done = run(START_CUDA, FIRN_DEVICE="auto", FIRN_LIB=other_releases)
    warned, *said, ones = done.stdout.splitlines()
    assert warned == "" and len(said) == 3 and ones == "3.0"
    for line in said:
        assert re.fullmatch(FITS_OTHERS + r" \(firn_fallback:native goes on without Firn\)", line)


@pytest.mark.parametrize("how", ["word", "variable", "variable under firn run"])
def test_another_torch_goes_on_where_the_user_says_so(run, other_releases, how):
    done = run(START_CUDA, FIRN_DEVICE="auto", FIRN_LIB=other_releases,
               conf="backend:firn" + (",firn_fallback:native" if how == "word" else ""),
               **({} if how == "word" else {"FIRN_FALLBACK": "native"}),
               **({"FIRN_STRICT": "1"} if "run" in how else {}))
    warned, *said, _ = done.stdout.splitlines()
    assert re.fullmatch(FITS_OTHERS + ": the native allocator stays, nothing will spill", warned)
    assert said == ["started native"] * 3


def test_another_torch_ends_firn_run(run, other_releases):
    done = run(START_CUDA, status=2, FIRN_DEVICE="auto", FIRN_LIB=other_releases, FIRN_STRICT="1")
    assert done.stdout == "" and re.fullmatch(FITS_OTHERS + r" \(.*\)\n", done.stderr)


def test_fallback_is_read_as_firn_reads_it():
    assert startup.knob("fallback", "backend:firn", {}) == ""
    assert startup.knob("fallback", "backend:firn", {"FIRN_FALLBACK": "native"}) == "native"
    assert startup.knob("fallback", "backend:firn, firn_fallback : native ,firn_host:1GiB",
                        {"FIRN_FALLBACK": "refuse"}) == "native"


def test_a_library_that_does_not_load(run, tmp_path):
    """Of the right release, but for another CUDA, say: the loader's words, and what to do."""
    done = run("""
        from firn import _libraries
        name = "libfirn_torch-%s.so" % _libraries._minor(_libraries.torch_version())
        open(name, "w").close()
        import torch
        try:
            torch.cuda.init()
        except RuntimeError as error:
            print(error)
    """, FIRN_DEVICE="auto", FIRN_LIB=tmp_path)
    assert re.fullmatch(r"firn: libfirn_torch-2\.\d+\.so does not fit torch 2\..*file too short.*"
                        r"reinstall firn \(firn_fallback:native.*\)\n", done.stdout)


@pytest.mark.parametrize("there, says", [
    (False, r"needs libother\.so\.9, which this machine does not have; install that library"),
    (True, r"needs /\S*/libother\.so\.9, which does not load \(\S+: file too short\)")])
def test_a_library_that_lacks_another_one(run, tmp_path, there, says):
    """The one that lacks is named, not torch."""
    done = run("""
        import subprocess
        from firn import _libraries
        minor = _libraries._minor(_libraries.torch_version())
        for name, links in (("libother.so.9", []),
                            ("libfirn_torch-%s.so" % minor, ["-L.", "-l:libother.so.9"])):
            subprocess.run(["cc", "-shared", "-Wl,--no-as-needed", "-Wl,-soname," + name, "-x", "c",
                            "/dev/null", "-o", name, "-x", "none", *links], check=True)
    """ + ("    open('libother.so.9', 'w').close()" if there else
           "    import os; os.unlink('libother.so.9')") + """
        import torch
        try:
            torch.cuda.init()
        except RuntimeError as error:
            print(error)
    """, FIRN_DEVICE="auto", FIRN_LIB=tmp_path, LD_LIBRARY_PATH=tmp_path)
    assert re.match(r"firn: libfirn_torch-2\.\d+\.so " + says, done.stdout), done.stdout


def test_the_library_of_the_torch_that_is_loaded(run):
    """Of several, the one with torch's minor in its name; in a build folder also without one, as
    _build.py says."""
    done = run("""
        import os, sys, types
        from firn import _libraries
        folders = [os.path.join(os.getcwd(), name) for name in ("lib", "build")]
        for name in ("lib/libfirn_torch-2.9.so", "lib/libfirn_torch-2.11.so",
                     "build/pytorch_plugin/libfirn_torch.so",
                     "build/pytorch_plugin/libfirn_torch-2.12.so", "build/pytorch_plugin/_build.py",
                     "build/backing/gpu/software/torch_ops/libfirn_torch_ops.so"):
            os.makedirs(os.path.dirname(name), exist_ok=True)
            with open(name, "w") as file:
                file.write('torch_version = "2.10.1+cu130"')
        os.environ.update(FIRN_LIB=os.path.abspath("lib"), FIRN_BUILD=os.path.abspath("build"))
        def found(version, name="libfirn_torch.so"):
            _libraries.torch_version = lambda: version
            path = _libraries.find_library(name)
            return path and os.path.relpath(path)
        assert found("2.9.0a1") == "lib/libfirn_torch-2.9.so"
        assert found("2.10.0") == "build/pytorch_plugin/libfirn_torch.so"
        assert found("2.11.3+cu130") == "lib/libfirn_torch-2.11.so"
        assert found("2.12.1") == "build/pytorch_plugin/libfirn_torch-2.12.so"
        assert found("2.1.0") is None and found("nonsense") is None
        assert found("2.10.0", "libfirn_torch_ops.so").startswith("build/backing/")
        assert found("2.12.0", "libfirn_torch_ops.so") is None
        _libraries._folders = lambda: [os.environ["FIRN_LIB"]]
        assert _libraries.minors_found() == ["2.9", "2.10", "2.11"]
    """, conf=None, FIRN_DEVICE="auto")
    assert done.stderr == ""
