"""`firn simulate --ssd-endurance`: what an SSD is written, and how long it lasts."""

import json

import pytest
from firn_command import ROOT

LAYERS = str(ROOT / "tests" / "data" / "layers")
SHORT = (LAYERS, "--gpu-memory", "220MiB", "--host", "256MiB")   # writes to its SSDs
TERA, DAY_S, YEAR_DAYS = 10**12, 86_400, 365.25


def simulated(firn, *words):
    done = firn("simulate", *words, "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def wear_line(firn, *words):
    done = firn("simulate", *words)
    assert done.returncode == 0, done.stderr
    return [line for line in done.stdout.splitlines() if line.startswith("wear")]


@pytest.mark.parametrize("ssds", [1, 3, 7])
def test_years_are_those_of_the_bytes_written(firn, ssds):
    found = simulated(firn, *SHORT, "--ssds", str(ssds), "--ssd-endurance", "600TB")
    wear = found["wear"]
    steps_a_day = DAY_S / found["steady_s"]
    assert wear["endurance_bytes"] == 600 * TERA
    assert wear["bytes_written"] == found["bytes_written"] > 0
    assert len(wear["ssds"]) == ssds
    for ssd in wear["ssds"]:
        assert ssd["bytes_per_day"] == pytest.approx(ssd["bytes_written"] * steps_a_day, rel=1e-6)
        assert ssd["years"] == pytest.approx(
            600 * TERA / (ssd["bytes_written"] * steps_a_day) / YEAR_DAYS, rel=1e-6)
    assert sum(ssd["bytes_written"] for ssd in wear["ssds"]) == \
        pytest.approx(found["bytes_written"], abs=ssds)
    assert wear["bytes_per_day"] == pytest.approx(found["bytes_written"] * steps_a_day, rel=1e-6)
    assert wear["years"] == pytest.approx(
        ssds * 600 * TERA / wear["bytes_per_day"] / YEAR_DAYS, rel=1e-6)
    assert wear["first_worn_years"] == min(ssd["years"] for ssd in wear["ssds"])


def test_each_ssd_counts_what_is_written_to_it(firn):
    """Slots of different sizes go to the SSDs in turn: they are not written alike."""
    wear = simulated(firn, *SHORT, "--ssds", "7", "--ssd-endurance", "1TB")["wear"]
    assert len({ssd["bytes_written"] for ssd in wear["ssds"]}) > 1
    assert wear["first_worn_years"] < wear["years"]


def test_twice_the_endurance_lasts_twice_as_long(firn):
    once, twice = (simulated(firn, *SHORT, "--ssd-endurance", each)["wear"]["years"]
                   for each in ("50TB", "100TB"))
    assert twice == pytest.approx(2 * once, rel=1e-9)


def test_a_sweep_and_a_single_run_say_the_same(firn):
    words = (LAYERS, "--host", "256MiB", "--ssds", "3", "--ssd-endurance", "600TB")
    point, = simulated(firn, *words, "--sweep", "budget=220MiB:220MiB:1MiB")["sweep"]
    one = simulated(firn, *words, "--gpu-memory", "220MiB")
    assert point["wear"] == one["wear"]
    assert point["endurance_days"] == pytest.approx(one["wear"]["years"] * YEAR_DAYS, rel=1e-6)


def test_nothing_written_wears_nothing_out(firn):
    words = (LAYERS, "--gpu-memory", "1GiB", "--ssds", "2", "--ssd-endurance", "600TB")
    wear = simulated(firn, *words)["wear"]
    assert wear["bytes_per_day"] == 0 and wear["years"] is None
    assert wear["first_worn_years"] is None
    assert [ssd["years"] for ssd in wear["ssds"]] == [None, None]
    line, = wear_line(firn, *words)
    assert "nothing is written" in line


def test_the_text_says_it_where_it_was_asked_for(firn):
    line, = wear_line(firn, *SHORT, "--ssds", "3", "--ssd-endurance", "600TB")
    wear = simulated(firn, *SHORT, "--ssds", "3", "--ssd-endurance", "600TB")["wear"]
    assert f"{wear['years']:.3g} years" in line and f"{wear['first_worn_years']:.3g}" in line
    assert len(line) <= 120
    assert wear_line(firn, *SHORT) == []
    assert "wear" not in simulated(firn, *SHORT)
