"""bench/jobs: whole training steps on fake tensors, beside the same steps run for real; and what is
made of them."""

import csv
import json
import os
import pathlib
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
FIRN = os.environ.get("FIRN_TEST_BINARY", str(ROOT / "build/allocator/command/firn"))
sys.path.append(str(ROOT / "bench/jobs"))


@pytest.fixture(scope="module")
def cases():
    done = subprocess.run([sys.executable, str(ROOT / "tests/bench/jobs_cases.py")],
                          capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("name", ["llama", "gpt", "resnet"])
def test_the_recorded_peak_is_the_measured_one(cases, name):
    found = cases[name]
    assert found["plain"]["peak_bytes"] == pytest.approx(found["measured"], rel=0.03)


def test_other_ways_take_less_memory_and_more_time(cases):
    plain = cases["llama"]["plain"]
    for way in ("recompute", "save-on-cpu"):
        other = cases["llama"][way]
        assert other["persistent_bytes"] == plain["persistent_bytes"]
        assert other["peak_bytes"] < plain["peak_bytes"]
        assert other["seconds"] > plain["seconds"]
        assert other["kernels"] > plain["kernels"]


def test_a_master_and_states_of_32_bits_are_updated_at_the_host(cases):
    device, host, plain = cases["fp32"], cases["host"], cases["llama"]["relay"]
    # Of each parameter three times 4 bytes, beside its own 2; bf16's states are two times 2.
    assert device["persistent_bytes"] == host["persistent_bytes"]
    assert device["persistent_bytes"] / plain["persistent_bytes"] == pytest.approx(14 / 6, rel=.02)
    assert device["hosted"] == [] and "host_seconds" not in device
    assert set(map(tuple, host["hosted"])) == {(True, 4, 4)}
    assert host["kernels"] == device["kernels"]
    assert host["seconds"] < device["seconds"]
    parameters = host["persistent_bytes"] / 14
    assert host["host_seconds"] == pytest.approx(parameters / 1e9, rel=.02)


def test_shards_hold_a_part_and_reduce(cases):
    whole, part = cases["llama"]["plain"], cases["shards"]["plain"]
    assert 0.45 < part["persistent_bytes"] / whole["persistent_bytes"] < 0.6
    assert cases["shards"]["all_reduces"] == 3 * 4  # each layer: two forward, two backward


@pytest.mark.parametrize("name, sums", [("gpt", 3 * 4), ("bert", 3 * 4), ("t5", 3 * (4 + 6))])
def test_shards_of_other_models(cases, name, sums):
    whole, part = cases[name]["plain"], cases[f"{name}-shards"]["plain"]
    assert 0.45 < part["persistent_bytes"] / whole["persistent_bytes"] < 0.6
    assert part["peak_bytes"] < whole["peak_bytes"]
    assert cases[f"{name}-shards"]["all_reduces"] == sums


def write(prefix, kernels, sizes, persistent):
    with open(f"{prefix}.tensors.csv", "w", newline="", encoding="utf-8") as file:
        rows = csv.writer(file)
        rows.writerow(("tensor", "bytes", "kind"))
        rows.writerows((each, size, "persistent" if each in persistent else "transient")
                       for each, size in sizes.items())
    with open(f"{prefix}.kernels.csv", "w", newline="", encoding="utf-8") as file:
        rows = csv.writer(file)
        rows.writerow(("kernel", "name", "duration_ns", "inputs", "outputs"))
        for at, (ns, ins, outs) in enumerate(kernels):
            rows.writerow((at, "k", ns, " ".join(map(str, ins)), " ".join(map(str, outs))))


def test_paging_by_hand(tmp_path):
    import job_traces
    import others
    # Four blocks of 1 GB that only are read, used in turn, in room for three: the one that is
    # needed next has always just left, and nothing is written back.
    sizes = {each: 10**9 for each in range(4)}
    kernels = [(10**9, [each], []) for each in range(4)]
    write(tmp_path / "turn", kernels, sizes, set(sizes))
    trace = job_traces.read(str(tmp_path / "turn"))
    assert others.paging_s(trace, 4 * 10**9) == pytest.approx(4.0)
    assert others.paging_s(trace, 3 * 10**9) == pytest.approx(4.0 + 4 / others.PAGING_GBS)
    assert others.paging_s(trace, 10**9 - 1) is None
    # Written, they have to leave as well.
    write(tmp_path / "written", [(10**9, [], [each]) for each in range(4)], sizes, set(sizes))
    trace = job_traces.read(str(tmp_path / "written"))
    assert others.paging_s(trace, 3 * 10**9) == pytest.approx(4.0 + 8 / others.PAGING_GBS)


def figures(*words):
    return subprocess.run([sys.executable, str(ROOT / "bench/jobs/figures.py"), *words],
                          capture_output=True, text=True, timeout=600)


def test_figures_of_a_job(tmp_path):
    done = figures("--jobs", "gpt-8192", "--budgets", "100,60", "--out", str(tmp_path / "out"),
                   "--firn", FIRN)
    assert done.returncode == 0, done.stderr
    job, = json.loads((tmp_path / "out/jobs.json").read_text())["jobs"]
    full, part = job["budgets"]
    assert full["lifetime"]["steady_s"] == pytest.approx(job["seconds"], rel=0.05)
    assert part["lifetime"]["bytes_spilled"] > 0
    assert part["lifetime"]["peak_device_bytes"] <= part["budget_bytes"]
    assert part["bound"]["steady_s"] <= part["lifetime"]["steady_s"] \
        <= part["age"]["steady_s"] * 1.02
    again = part["remake"]
    assert again["remade_bytes"] > 0 and again["remade_s"] > 0
    assert part["bound_remake"]["proven"]
    assert part["bound_remake"]["steady_s"] < 1.1 * job["seconds"]
    assert part["bound_remake"]["steady_s"] <= again["steady_s"] < part["lifetime"]["steady_s"]
    assert part["titan"]["steady_s"] < part["chosen"]["steady_s"] < part["recompute"]["steady_s"]
    assert job["times"] == "roofline"
    assert part["nothing"] == {"error": "out of memory"}
    assert (tmp_path / "out/h200.png").read_bytes().startswith(b"\x89PNG")
    assert "data:image/png;base64," in (tmp_path / "out/index.html").read_text()
    assert not list((tmp_path / "out").glob("*.part"))


def test_a_recorded_trace_is_a_job_and_figures_are_added(tmp_path):
    """The last of a round replaces the one before, others stay."""
    def jobs(*words):
        done = figures("--jobs", str(ROOT / "tests/data/layers"), "--budgets", "100,80", "--out",
                       str(tmp_path / "out"), "--firn", FIRN, *words)
        assert done.returncode == 0, done.stderr
        return json.loads((tmp_path / "out/jobs.json").read_text())["jobs"]
    job, = jobs()
    assert job["times"] == "recorded" and job["job"] == "layers"
    for row in job["budgets"]:
        assert row["bound"]["steady_s"] <= row["lifetime"]["steady_s"] * (1 + 1e-6)
        assert row["recompute"]["error"] == "recorded as it ran, in no other way"
    assert [each["ssds"] for each in jobs("--ssds", "1,4")] == [4, 1]
    page = (tmp_path / "out/index.html").read_text()
    assert "(recorded)" in page and page.count("<code>figures.py --jobs") == 2
    done = figures("--again", "--out", str(tmp_path / "out"), "--firn", FIRN)
    assert done.returncode == 0 and (tmp_path / "out/index.html").read_text() == page


def row(percent, lifetime, **more):
    none = {"error": "out of memory"}
    return {"percent": percent, "budget_bytes": percent << 30,
            "bound": {"steady_s": 1.5, "waits_s": {"link, out": 0.5, "link, in": 0}},
            "lifetime": lifetime, "age": none, "both": {"steady_s": 1.3},
            **{each: none for each in ("recompute", "save-on-cpu", "streaming", "paging",
                                       "nothing")}, **more}


def test_the_page_says_where_another_is_faster_and_why(tmp_path):
    import jobs_page
    job = {"job": "made", "machine": "h200", "ssds": 4, "words": "a machine", "seconds": 1.0,
           "times": "roofline", "kernels": 3, "peak_bytes": 100 << 30, "persistent_bytes": 1 << 30}
    rows = [row(100, {"steady_s": 1.0}, nothing={"steady_s": 1.001}),
            row(60, {"steady_s": 1.55}, recompute={"steady_s": 1.25}),
            row(50, {"steady_s": 1.8}, paging={"steady_s": 1.7}, recompute={"steady_s": 1.79}),
            row(40, {"error": "no room"}, streaming={"steady_s": 9.0})]
    found = jobs_page.losses([{**job, "budgets": rows}])
    assert [(percent, other) for _, percent, other, _, _ in found] == \
        [(60, "recompute"), (50, "recompute"), (50, "paging"), (40, "streaming")]
    link, _, decided, none = (each[4] for each in found)
    assert "no mover of bytes beats" in link and "0.5 s link, out" in link and ", in" not in link
    assert "computes for 0.25 s more" in link and "takes 1.3 s" in link
    assert "its decisions leave that much" in decided
    assert none.startswith("Firn does not run: no room")
    # Where making again was run, that is Firn's way.
    again = row(60, {"steady_s": 1.55}, recompute={"steady_s": 1.25}, remake={"steady_s": 1.24},
                bound_remake={"steady_s": 1.2})
    assert not jobs_page.losses([{**job, "budgets": [again]}])
    again["remake"] = {"steady_s": 1.4}
    (_, _, other, ratio, said), = jobs_page.losses([{**job, "budgets": [again]}])
    assert other == "recompute" and ratio == pytest.approx(1.12) and "reaches 0.86" in said
    page = jobs_page.render({"jobs": [{**job, "budgets": rows}, {**job, "error": "no <room>"}],
                             "runs": []}, tmp_path)
    assert "1.24 x" in page and "no &lt;room&gt;" in page
    assert "<p>Nowhere.</p>" in jobs_page.render(
        {"jobs": [{**job, "budgets": rows[:1]}], "runs": []}, tmp_path)


def test_ways_at_best_by_hand():
    import bound
    import job_traces
    import others
    # A value of 2 lies idle beside one of 3, with a weight of 1, in room for 5 of 6: half of it is
    # recomputed in half a second; a link of .1 a second hardly helps, one of 10 carries most.
    giga = 10**9
    trace = job_traces.Trace([(giga, [9], [0]), (3 * giga, [], [1]), (giga, [0], [])],
                             {0: 2 * giga, 1: 3 * giga, 9: giga}, {9})
    assert others.recomputing_s(trace, 6 * giga) == pytest.approx(5)
    assert others.recomputing_s(trace, 5 * giga) == pytest.approx(5.5, rel=1e-4)
    # No choice makes room for 1 and the weight, 4, in less.
    assert others.recomputing_s(trace, 7 * giga // 2) is None
    slow, fast = bound.Machine(link=0.1 * giga), bound.Machine(link=10 * giga)
    assert 5.45 < others.moving_or_recomputing_s(trace, 5 * giga, slow) < 5.501
    assert 5.1 < others.moving_or_recomputing_s(trace, 5 * giga, fast) < 5.2
    assert others.moving_or_recomputing_s(trace, giga, fast) is None     # the weight stays


def test_states_that_are_streamed_fill_host_memory_first():
    import dataclasses

    import gpus
    import others
    giga = gpus.GIB
    recomputed = {"seconds": 1.0, "persistent_bytes": 90 * giga, "peak_bytes": 130 * giga,
                  "largest_kernel_bytes": giga}

    def seconds(host_gib):
        machine = dataclasses.replace(gpus.MACHINES["h200"], host_gib=host_gib, ssds=1)
        return others.streaming(recomputed, 30 * giga, 10, machine)[1]
    least = 4 * 30 * giga / 55e9                       # weights thrice in, gradients out
    each_way = giga / 13e9 + giga / 9e9                # of a GiB on the SSD
    assert seconds(120) == pytest.approx(least)        # 60 of states beside 30 and 30
    assert seconds(100) == pytest.approx(least + 20 * each_way - 1)
    assert seconds(60) == seconds(1) == pytest.approx(least + 60 * each_way - 1)


def test_budgets_and_columns_are_added_where_the_trace_is_the_same():
    import runs
    trace = {"kernels": 3, "seconds": 1.0, "peak_bytes": 9, "persistent_bytes": 1,
             "times": "roofline", "words": "a machine"}
    before = {**trace, "budgets": [{"percent": 80, "age": 1, "lifetime": 2}]}
    after = {**trace, "budgets": [{"percent": 80, "lifetime": 3}, {"percent": 90, "age": 4}]}
    assert runs.added_to(before, after)["budgets"] == [
        {"percent": 90, "age": 4}, {"percent": 80, "age": 1, "lifetime": 3}]
    assert runs.added_to({**before, "seconds": 1.1}, after) == after
    assert runs.added_to({"error": "none"}, after) == after


def test_the_least_budget_by_bisection():
    import published
    summary = {"largest_kernel_bytes": 10, "peak_bytes": 1000, "seconds": 1.0}
    least = published.least_budget(lambda budget: 1.0 if budget >= 400 else 1.02, summary, 12)
    assert least == 400
    assert published.least_budget(lambda budget: 2.0, summary) == 1000


def test_a_step_that_does_not_run_is_not_one_that_needs_all_its_memory():
    import published
    summary = {"largest_kernel_bytes": 100, "peak_bytes": 1000, "seconds": 1.0}

    def run(budget):
        return {"steady_s": 1.0} if budget >= 400 else {"error": "a kernel needs more"}

    assert 400 <= published.least_or_why(run, summary)["budget_bytes"] < 430
    assert published.least_or_why(lambda budget: {"error": "no firn"}, summary) == {
        "error": "no firn"}


def test_what_is_made_in_an_iteration_alone():
    import job_traces
    trace = job_traces.Trace([(5, [0], [1]), (6, [0, 1], [0])], {0: 100, 1: 10}, {0})
    alone = job_traces.without_persistent(trace)
    assert alone.kernels == [(5, [], [1]), (6, [1], [])] and alone.bytes == {1: 10}
    assert job_traces.summary(trace) == {"kernels": 2, "seconds": 11e-9, "peak_bytes": 110,
                                         "persistent_bytes": 100, "largest_kernel_bytes": 110}
    assert job_traces.summary(alone)["peak_bytes"] == 10


@pytest.mark.parametrize("words, said", [
    (("--jobs", "no-such"), "no such job: no-such"),
    (("--firn", "/nowhere/firn"), "/nowhere/firn is not there"),
    (("--budgets", "many"), "many"),
    (("--columns", "lifetime,other"), "not other"),
    (("--published", "other"), "other"),
    (("--again",), "--out is wanted"),
])
def test_wrong_words(words, said):
    done = figures(*words)
    assert done.returncode == 2
    assert said in done.stderr.splitlines()[-1]
