"""bench/jobs/published_page.py: every figure has a row, from results and no others."""

import json
import pathlib
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "bench/jobs"))
SCRIPT = ROOT / "bench/jobs/published_page.py"
ROAM = ROOT / "bench/roam/RESULTS.md"


@pytest.fixture
def rows():
    import published_page

    def of(found, folder, roam=ROAM):
        folder.mkdir(exist_ok=True)
        (folder / "jobs.json").write_text(json.dumps({"runs": [], **found}))
        return published_page.rows(folder, roam)
    return of


def test_what_is_in_no_result_is_not_measured(rows, tmp_path):
    found = rows({}, tmp_path)
    of = {each.system: [one for one in found if one.system == each.system] for each in found}
    assert set(of) == {"TERAIO", "SSDTrain", "ROAM", "L2L"}
    assert not any(each.ours for system in ("TERAIO", "SSDTrain", "L2L") for each in of[system])
    assert all(each.why for system in ("TERAIO", "SSDTrain", "L2L") for each in of[system])
    assert any("1.47" in each.theirs for each in of["TERAIO"])
    assert any("50 B" in each.what for each in of["L2L"])


def test_roam_s_rows_come_from_its_table(rows, tmp_path):
    roam = tmp_path / "RESULTS.md"
    roam.write_text(ROAM.read_text())
    before = {each.what: each for each in rows({}, tmp_path / "a", roam)
              if each.system == "ROAM"}
    assert len(before) == 7 * 2 + 3 + 4 + 3 and all(each.ours for each in before.values())
    name = "vit_b_16, batch 1: MiB with weights (seconds to plan)"
    assert before[name].ours == "482.6 (0.43)" and before[name].theirs == "483 (86)"
    roam.write_text("\n".join(
        line.replace("482.6", "500.5") if line.startswith("| vit_b_16 1 |") else line
        for line in ROAM.read_text().splitlines() if not line.startswith("| alexnet 1 |")))
    after = {each.what: each for each in rows({}, tmp_path / "b", roam)}
    assert after[name].ours == "500.5 (0.43)" and "500.5" in after[name].why
    alexnet = after["alexnet, batch 1: MiB with weights (seconds to plan)"]
    assert alexnet.ours == "" and "not in RESULTS.md" in alexnet.why


def test_a_figure_that_is_less_says_why(rows, tmp_path):
    case = {"job": "j", "machine": "m", "batch": 8, "length": 2048, "words": "a machine",
            "seconds": 1.0, "lifetime": {"steady_s": 4.0, "plan_s": .5},
            "bound": {"steady_s": 2.0}, "greedy": {"steady_s": 5.0},
            "peak_bytes": 9 << 30, "budget_bytes": 8 << 30}
    way = {**case, "way": "recompute", "micro_batches": 1, "lifetime": {"steady_s": 1.1}}
    runs = [{"date": "today", "command": "figures.py --published teraio", "versions": ""},
            {"date": "later", "command": "figures.py --published l2l,teraio", "versions": ""},
            {"date": "then", "command": "figures.py --published ssdtrain", "versions": ""}]
    fits = {**way, "peak_bytes": 7 << 30, "lifetime": {"steady_s": 1.0}}
    found = rows({"runs": runs, "teraio": [case], "teraio_ways": [way, fits]}, tmp_path)
    plain, again, fitting, mean = (each for each in found if each.system == "TERAIO" and each.ours
                          and "part of ideal" in each.what)
    assert plain.ours.startswith("0.250") and "0.500 (bound)" in plain.why
    assert plain.command == "bench/jobs/figures.py --published l2l,teraio (later)"
    assert again.ours.startswith("0.909") and again.why == ""
    assert fitting.ours == "1.000 (fits: 7 GiB)"
    assert mean.ours.startswith("0.909 (1 models)")


def test_updates_at_the_host_stand_beside_those_on_the_device(rows, tmp_path):
    row = {"job": "j", "machine": "m", "batch": 0, "words": "a machine", "seconds": 1.0, "orders": [
        {"order": "fp32", "budgets": [{"percent": 50, "budget_bytes": 8 << 30, "steady_s": 2.0}]},
        {"order": "host 5g", "budgets": [{"percent": 50, "budget_bytes": 8 << 30,
                                          "steady_s": 1.25}]}]}
    runs = [{"date": "today", "command": "figures.py --published l2l-host", "versions": ""}]
    (found,) = [each for each in rows({"runs": runs, "l2l_host": [row]}, tmp_path)
                if "by its optimizer" in each.what]
    assert found.ours == "0.500 (fp32), 0.800 (host 5g)" and "8.0 GiB" in found.what


def test_the_command_is_the_last_that_ran_the_job():
    from published_row import command_of
    runs = [{"date": "1", "command": "figures.py --published l2l --jobs a,b"},
            {"date": "2", "command": "figures.py --published l2l --jobs c"},
            {"date": "3", "command": "figures.py --jobs a"},
            {"date": "4", "command": "figures.py --published"}]
    assert command_of({"runs": runs}, "l2l", "a") == \
        "bench/jobs/figures.py --published l2l --jobs a,b (1)"
    assert command_of({"runs": runs}, "l2l").endswith("(2)")
    assert command_of({"runs": runs}, "l2l", "d") == ""
    assert command_of({"runs": runs}, "ssdtrain") == ""


def test_l2l_s_rows_are_reckoned_from_both_runs(rows, tmp_path):
    gib = 2**30
    batch = {"batch": 256, "loop_part": 32, "loop": {"peak_bytes": 16 * gib, "seconds": 2.0},
             "relay": {"budget_bytes": 4 * gib, "steady_s": 2.5}}
    depth = [{"layers": count, "words": "a V100", "budget_bytes": 2 * gib, "ahead_kernels": 8,
              "seconds": 1.0, "ahead": {"steady_s": 1.005}, "waiting": {"steady_s": 1.02},
              **({"least_waiting": {"budget_bytes": least * gib, "steady_s": 1.0}}
                 if least else {})} for count, least in ((384, 0), (12, 2), (96, 4))]
    found = {each.what: each for each in rows(
        {"l2l_batches": [{"words": "a V100", "rows": [batch]}],
         "l2l_depths": depth}, tmp_path) if each.system == "L2L"}
    assert found["BERT-Large, batch 256: device memory"].ours == "75 % less"
    faster = found["BERT-Large, batch 256: throughput, beside a loop of 32"]
    assert faster.ours == "-20 %" and "recomputed" in faster.why
    what = "BERT-Large, 12 to 384 layers: device memory, "
    ahead, waiting = (found[what + way] for way in ("8 kernels enqueued ahead",
                                                    "a program that waits for each kernel"))
    assert ahead.ours == "2.00 GiB throughout, at 0.9950 to 0.9950 of unlimited speed"
    assert ahead.why == "" and "2.0 % longer: the driver's calls" in waiting.why
    said = "{}: least memory for a step at most 1 % longer".format
    least = found[said("BERT-Large, 12 to 96 layers, a program that waits for each kernel")]
    assert least.ours == "2.00, 4.00 GiB" and "stays" in least.why
    assert said("BERT-Large, 12 to 96 layers, 8 kernels enqueued ahead") not in found


def test_the_bandwidth_that_suffices_is_said(rows, tmp_path):
    def row(ssds, moved, again):
        return {"job": "j", "machine": "m", "batch": 8, "length": 2048, "ssds": ssds,
                "write_gbs": 4.0 * ssds, "words": "a machine", "seconds": 1.0,
                "lifetime": {"steady_s": 1 / moved}, "bound": {"steady_s": 1 / (moved + .01)},
                "remake": {"steady_s": 1 / again}, "bound_remake": {"error": "none"}}
    swept = [row(8, .7, .96), row(2, .3, .9), row(16, .97, .98)]
    found, = (each for each in rows({"teraio_bandwidth": swept}, tmp_path)
              if "SSD bandwidth" in each.what)
    assert found.ours.startswith("8 GB/s: 0.300 moved (any mover 0.310), 0.900 with values")
    assert found.why == "0.95 of ideal by moving from 64 GB/s, with values made again from 32 GB/s"


def test_the_page_is_written_by_one_command(tmp_path):
    done = subprocess.run([sys.executable, str(SCRIPT), "--out", str(tmp_path / "page.html")],
                          capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    page = (tmp_path / "page.html").read_text()
    for said in ("<h2>ROAM</h2>", "not measured", "482.6 (0.43)", "bench/roam/figures.py"):
        assert said in page
    missing = subprocess.run([sys.executable, str(SCRIPT), "--results", str(tmp_path)],
                             capture_output=True, text=True)
    assert missing.returncode == 2 and "jobs.json is not there" in missing.stderr
