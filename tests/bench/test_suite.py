"""bench/run.sh's suite: results are whole or not there, what is left out is said, and what lost is
marked. (No figure is compared with a limit: other work shares the machine.)"""

import pathlib
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "bench"))
from firn_bench import compare, figures, page, steps  # noqa: E402


def run(*words):
    return subprocess.run([sys.executable, "-m", "firn_bench.run", *map(str, words)],
                          cwd=ROOT / "bench", capture_output=True, text=True, timeout=300)


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
    text = page.render(results(left_out=["<no fio>"]),
                       [figures.Figure("a", "<b>", "ns", 1.0, peers={"peer": 2.0})])
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
