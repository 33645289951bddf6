"""bench/run.sh's suite: results are whole or not there, what is left out is said, and what lost is
marked. (No figure is compared with a limit: other work shares the machine.)"""

import collections
import os
import pathlib
import signal
import subprocess
import sys
import time

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "bench"))
sys.path.append(str(ROOT / "bench/overhead"))
import mixes  # noqa: E402
from firn_bench import compare, figures, page, peers, steps, stores  # noqa: E402

MIXES = sorted((ROOT / "bench/overhead/mixes").glob("*.csv"))


def run(*words, **environment):
    return subprocess.run([sys.executable, "-m", "firn_bench.run", *map(str, words)],
                          cwd=ROOT / "bench", capture_output=True, text=True, timeout=300,
                          env={**os.environ, **environment})


def results(**more):
    return {"machine": {"cores": 2}, "kind": "software-2cores", "date": "2026-01-01",
            "quick": True, "command": "bench/run.sh", "seconds": {}, "left_out": [], **more}


def test_a_bench_from_end_to_end(tmp_path):
    done = run("quick", "layout", "--out", tmp_path / "out", "--scratch", tmp_path)
    assert done.returncode == 0, done.stderr
    file, = (tmp_path / "out").glob("*.json")
    said, found = figures.read(file)
    assert said["left_out"] == []
    assert said["machine"]["cores"] >= 1
    heights = [each for each in found if each.name.endswith("height over load")]
    assert len(heights) == 2 and all(1 <= each.firn < 1.1 for each in heights)
    assert "height over load" in file.with_suffix(".html").read_text()
    assert sorted(each.name for each in tmp_path.iterdir()) == ["out"]


def test_what_cannot_run_is_left_out_and_the_rest_goes_on(tmp_path, monkeypatch):
    context = steps.Context(True, tmp_path)
    with pytest.raises(steps.LeftOut, match="status 3: because"):
        context.run(["sh", "-c", "echo because >&2; exit 3"], 10)
    with pytest.raises(steps.LeftOut, match="more than"):
        context.run(["sleep", "60"], 0.05)
    with pytest.raises(steps.LeftOut, match="nowhere"):
        context.run(["/nowhere/program"], 1)


def test_quartiles_and_files(tmp_path):
    made = [figures.median_of("a", "b", "ns", [5, 1, 3], peers={"other": 6}),
            figures.Figure("a", "c", "MB/s", 10.0, better="higher")]
    assert made[0].firn == 3 and made[0].ratio("other") == 0.5
    figures.write_whole(tmp_path / "x.json", figures.as_json(results(), made))
    _, again = figures.read(tmp_path / "x.json")
    assert again == made
    assert list(tmp_path.iterdir()) == [tmp_path / "x.json"]
    whole = (tmp_path / "x.json").read_text()
    for cut in ("", whole[:len(whole) // 2], "[]", "{}"):
        (tmp_path / "cut.json").write_text(cut)
        with pytest.raises(ValueError, match="cut.json: no results of bench/run.sh"):
            figures.read(tmp_path / "cut.json")


def test_what_lost_a_tenth_is_said():
    old = [figures.Figure("a", "slower", "ns", 100), figures.Figure("a", "same", "ns", 100),
           figures.Figure("a", "narrower", "MB/s", 100, better="higher"),
           figures.Figure("a", "wider", "MB/s", 100, better="higher")]
    new = [figures.Figure("a", "slower", "ns", 130), figures.Figure("a", "same", "ns", 105),
           figures.Figure("a", "narrower", "MB/s", 80, better="higher"),
           figures.Figure("a", "wider", "MB/s", 130, better="higher"),
           figures.Figure("a", "new", "ns", 1)]
    lines = compare.lost(results(), old, results(), new)
    assert [line.split(":")[0] for line in lines] == ["a, slower", "a, narrower"]
    assert compare.lost(results(quick=False), old, results(), new) == []


def test_the_latest_is_of_the_same_kind_and_length_and_tells_of_the_same(tmp_path):
    def write(name, bench, **more):
        made = [figures.Figure(bench, "x", "ns", 1.0)]
        figures.write_whole(tmp_path / f"{results()['kind']}-{name}.json",
                            figures.as_json(results(**more), made))

    def latest(names, but="none", **more):
        found = compare.latest(tmp_path, results(**more), names, tmp_path / but)
        return found and found[0]["date"]

    assert latest(["a"]) is None
    write("1-quick", "a", date="2026-01-01")
    write("2-quick", "b", date="2026-01-02")
    write("3", "a", date="2026-01-03", quick=False)
    (tmp_path / f"{results()['kind']}-4.json").write_text("{")
    assert latest(["a"]) == "2026-01-01"
    assert latest(["a", "b"]) == "2026-01-02"
    assert latest(["c"]) is None
    assert latest(["a"], quick=False) == "2026-01-03"
    assert latest(["a"], but=f"{results()['kind']}-1-quick.json") is None


def test_compare_prints_both(tmp_path):
    for name, value in (("a", 100.0), ("b", 200.0)):
        figures.write_whole(tmp_path / f"{name}.json",
                            figures.as_json(results(), [figures.Figure("x", "y", "ns", value)]))
    words = ["bash", str(ROOT / "bench/compare"), str(tmp_path / "a.json"),
             str(tmp_path / "b.json")]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 and "<- lost" in done.stdout
    done = subprocess.run(words[:-1] + [str(tmp_path / "none.json")], capture_output=True,
                          text=True, timeout=60)
    assert done.returncode == 2 and "none.json" in done.stderr.splitlines()[-1]


def test_the_page_escapes_and_marks():
    made = [figures.Figure("a", "<b>", "ns", 1.0, peers={"peer": 2.0})]
    text = page.render(results(left_out=["<no fio>"]), made, page.plots(made))
    assert "&lt;b&gt;" in text and "&lt;no fio&gt;" in text and "class=better" in text
    assert "data:image/png;base64," in text and "http" not in text


@pytest.mark.parametrize("words, said", [
    (("no-such",), "no such bench: no-such"),
    (("layout", "--out", "/proc/nowhere"), "/proc/nowhere cannot be written"),
    (("layout", "--scratch", "/proc/nowhere"), "/proc/nowhere cannot be written"),
])
def test_wrong_words(words, said):
    done = run(*words)
    assert done.returncode == 2 and said in done.stderr.splitlines()[-1]


def test_the_list_names_every_bench():
    done = run("--list")
    assert [line.split()[0] for line in done.stdout.splitlines()] == list(steps.STEPS)
    assert done.returncode == 0


def test_curves_are_drawn_where_there_are_some():
    made = [figures.Figure("a", f"{x}", "ns", float(x), peers={"peer": 2.0 * x}, spread=(x / 2, x),
                           curve="against x", x=x) for x in (1, 4, 16)]
    lonely = figures.Figure("b", "one", "MB/s", 1.0, curve="one point", x=3, better="higher")
    images = page.plots(made + [lonely])
    assert sorted(images) == ["a-curves", "a-parts"]
    assert all(image.startswith(b"\x89PNG") for image in images.values())
    text = page.render(results(), made + [lonely], images)
    assert text.count("data:image/png") == 2


def test_plots_lie_beside_the_page(tmp_path):
    done = run("quick", "deciding", "layout", "--out", tmp_path / "out", "--scratch", tmp_path)
    assert done.returncode == 0, done.stderr
    file, = (tmp_path / "out").glob("*.json")
    names = {each.name for each in (tmp_path / "out").iterdir()}
    assert {file.name, file.with_suffix(".html").name} <= names
    assert not [name for name in names if name.endswith(".part")]


@pytest.mark.parametrize("file", MIXES, ids=[file.stem for file in MIXES])
def test_a_recorded_mix_frees_what_it_allocates(file):
    mix = mixes.read(file)
    live, most = set(), 0
    for handle, size, stream in zip(mix.handles, mix.bytes, mix.streams):
        assert (handle in live) == (size == 0)
        live ^= {handle}
        most = max(most, len(live))
        assert stream < mix.streams_count
    assert not live and not mix.cut and most == mix.handles_count > 50


def test_a_mix_that_was_cut_off_is_played_up_to_there(tmp_path):
    whole = mixes.read(MIXES[0])
    text = MIXES[0].read_text()
    for part in (len(text) // 2, len(text) // 3):
        file = tmp_path / "cut.csv"
        file.write_text(text[:part])
        mix = mixes.read(file)
        assert "cut.csv ends in the middle of line" in mix.cut
        assert collections.Counter(size == 0 for size in mix.bytes)[True] * 2 == len(mix.bytes)
        assert 0 < len(mix.bytes) < len(whole.bytes)
    for wrong, words in (("", "not what"), ("a,b\n1,2\n", "not what"),
                         (",".join(mixes.COLUMNS) + "\n", "no allocation"),
                         (",".join(mixes.COLUMNS) + "\n1,alloc,0,0,x,y,\n", "no allocation")):
        (tmp_path / "wrong.csv").write_text(wrong)
        with pytest.raises(ValueError, match=words):
            mixes.read(tmp_path / "wrong.csv")
    with pytest.raises(ValueError, match="nowhere.csv: No such file"):
        mixes.read(tmp_path / "nowhere.csv")


def test_a_quick_run_does_not_build_for_minutes(tmp_path, monkeypatch):
    monkeypatch.setattr(peers, "FOLDER", tmp_path / "peers")
    with pytest.raises(steps.LeftOut, match="not built yet"):
        peers.deepnvme(steps.Context(True, tmp_path))


def test_a_peer_that_cannot_be_installed_is_left_out(tmp_path, monkeypatch):
    context = steps.Context(False, tmp_path)
    monkeypatch.setattr(peers, "FOLDER", tmp_path / "peers")
    monkeypatch.setenv("PIP_INDEX_URL", "file:///nowhere")
    for install in (peers.rmm_pool, peers.deepnvme, peers.deepspeed):
        with pytest.raises(steps.LeftOut, match="pip|status"):
            install(context)
    monkeypatch.setenv("PATH", "/nowhere")
    others = stores._others(context)
    assert others == {}
    assert [each.split(":")[0] for each in context.left_out] == ["store", "store, DeepNVMe"]


def test_too_little_disk_is_said(tmp_path, monkeypatch):
    context = steps.Context(True, tmp_path)
    monkeypatch.setattr(stores, "_others", lambda context: {})
    monkeypatch.setattr(stores.shutil, "disk_usage",
                        lambda folder: collections.namedtuple("Use", "free")(1 << 20))
    with pytest.raises(steps.LeftOut, match="has 1 MiB left"):
        steps.store(context)


def test_an_interrupted_run_keeps_what_is_done(tmp_path):
    out = tmp_path / "out"
    process = subprocess.Popen([sys.executable, "-m", "firn_bench.run", "quick", "layout", "jobs",
                                "--out", str(out), "--scratch", str(tmp_path)],
                               cwd=ROOT / "bench", stdout=subprocess.PIPE, text=True)
    while not list(out.glob("*.json")):
        assert process.poll() is None
        time.sleep(.05)
    process.send_signal(signal.SIGINT)
    said, _ = process.communicate(timeout=120)
    assert process.returncode == 0 and "interrupted: what is done is kept" in said
    file, = out.glob("*.json")
    found, kept = figures.read(file)
    assert {each.bench for each in kept} == {"layout"}
    assert found["left_out"] == ["jobs and what comes after it: interrupted"]
    assert sorted(each.name for each in tmp_path.iterdir()) == ["out"]


def test_an_interrupt_between_two_benches_keeps_what_is_done(tmp_path):
    out = tmp_path / "out"
    code = f"""if True:
        import os, signal, sys
        from firn_bench import figures, run
        write = figures.write_whole
        def write_and_interrupt(path, text):
            write(path, text)
            figures.write_whole = write
            os.kill(os.getpid(), signal.SIGINT)
        figures.write_whole = write_and_interrupt
        sys.argv = ["run", "quick", "layout", "jobs", "--out", {str(out)!r},
                    "--scratch", {str(tmp_path)!r}]
        sys.exit(run.main())
    """
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT / "bench", text=True,
                          capture_output=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "interrupted: what is done is kept" in done.stdout
    file, = out.glob("*.json")
    found, kept = figures.read(file)
    assert {each.bench for each in kept} == {"layout"}
    assert found["left_out"] == ["jobs and what comes after it: interrupted"]


def test_results_that_cannot_be_written_leave_nothing_behind(tmp_path):
    (tmp_path / "x.json").mkdir()  # cannot be replaced by a file
    with pytest.raises(OSError):
        figures.write_whole(tmp_path / "x.json", "text")
    assert [each.name for each in tmp_path.iterdir()] == ["x.json"]
