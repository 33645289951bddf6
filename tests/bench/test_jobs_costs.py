"""bench/jobs/costs.py: tokens for a dollar, and how long SSDs last, by hand and as recorded."""

import json
import math
import pathlib
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "bench/jobs"))
COMMAND = [sys.executable, ROOT / "bench/jobs/costs.py"]
GIB = 1 << 30


def result(**more):
    return {"job": "llama3-8b", "machine": "a100", "ssds": 4, "seconds": 1.0, "budgets": [
        {"percent": 100, "budget_bytes": 60 * GIB, "lifetime": {"steady_s": 1.0}},  # not in 39
        {"percent": 60, "budget_bytes": 36 * GIB, "lifetime": {"steady_s": 4.0, "bytes_written": 0},
         "remake": {"steady_s": 2.0, "bytes_written": 8e9}, "both": {"error": "no room"}},
        {"percent": 20, "budget_bytes": 12 * GIB, "lifetime": {"steady_s": 1.0}}], **more}


def test_the_faster_way_in_the_largest_budget_that_fits():
    import costs
    prices = costs.Prices({"a100": 2.0}, ssd_usd=1000.0, ssd_endurance_tb=1e6, years=5)
    found = costs.cost(result(), prices)
    assert (found.way, found.budget_bytes, found.part) == ("remake", 36 * GIB, .5)
    assert found.samples_s == 4 * 4096 / 2
    # 8 GB in 2 s on four SSDs: 1 GB a second each, a million TB in 31.7 years; paid off in 5.
    assert found.ssd_years == pytest.approx(1e18 / 1e9 / 3600 / 8766)
    assert found.usd_hour == pytest.approx(2.0 + 4 * 1000 / (5 * 8766))
    assert found.samples_usd == pytest.approx(found.samples_s * 3600 / found.usd_hour)


def test_an_ssd_that_wears_out_first_is_paid_off_by_then():
    import costs
    prices = costs.Prices({"a100": 2.0}, ssd_usd=1000.0, ssd_endurance_tb=14_000, years=5)
    found = costs.cost(result(), prices)
    assert found.ssd_years == pytest.approx(14e15 / 1e9 / 3600 / 8766)
    assert found.ssd_years < 1
    assert found.usd_hour == pytest.approx(2.0 + 4 * 1000 / (found.ssd_years * 8766))


def test_a_shard_s_tokens_are_its_part():
    import costs
    case = {"job": "llama3-8b-tp2", "machine": "teraio", "batch": 8, "length": 2048, "seconds": 1.0,
            "budget_bytes": 79 * GIB, "lifetime": {"steady_s": 2.0, "bytes_written": 4e9},
            "remake": {"error": "no room"}}
    found = costs.cost(case, costs.Prices({"h100": 3.0}))
    assert found.job == "llama3-8b-tp2, 8 x 2048" and found.ssds == 4
    assert found.samples_s == 8 * 2048 / 2 / 2


def test_where_nothing_ran_or_has_a_price_there_is_no_row():
    import costs
    assert costs.cost(result(), costs.Prices({"h200": 1.0})) is None
    assert costs.cost(result(budgets=[]), costs.Prices({"a100": 1.0})) is None
    assert costs.ssd_life_years(0, 1.0, 4, costs.Prices({})) == math.inf


def test_the_command_on_the_figures_that_are_there():
    words = ["--json", "--jobs", "gpt-8192", "--price", "rtx4090=100"]
    rows = json.loads(subprocess.run(COMMAND + words, capture_output=True, text=True,
                                     check=True).stdout)
    assert {each["job"] for each in rows} == {"gpt-8192"}
    assert [each["samples_usd"] for each in rows] == sorted(
        (each["samples_usd"] for each in rows), reverse=True)
    assert rows[-1]["machine"] == "rtx4090" and rows[-1]["usd_hour"] > 100


@pytest.mark.parametrize("words, says", [
    (("--price", "gtx=3"), "gtx"), (("--price", "h200=free"), "free"),
    (("--ssd-price", "-1"), "-1"), (("--results", "/nowhere"), "jobs.json")])
def test_wrong_words(words, says):
    done = subprocess.run([*COMMAND, *words], capture_output=True, text=True)
    assert done.returncode == 2 and says in done.stderr.splitlines()[-1]
