"""bench/jobs/published_roam.py: ROAM's headlines, its own rows' and Firn's by one arithmetic."""

import pathlib
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "bench/jobs"))
RESULTS = ROOT / "bench/roam/RESULTS.md"


@pytest.fixture
def roam():
    import published_roam
    return published_roam


def headline(rows, column):
    found, = (each for each in rows if f"beside {column}" in each.what)
    return found


def test_the_mean_of_the_rows_gives_two_of_the_three_headlines(roam):
    mean = "the mean over the rows"
    found = {name: roam.gives(column, value) for name, column, value in roam.HEADLINES}
    assert found == {"PyTorch, with its fragmentation": [mean], "the best heuristic": [mean],
                     "MODeL": ["the median"]}
    of = {name: 100 * roam.AVERAGES[mean](roam.own_pairs(column))
          for name, column, _ in roam.HEADLINES}
    assert [round(each, 1) for each in of.values()] == [35.7, 13.5, 32.0]


def test_averages_by_hand(roam):
    pairs = [(1, 2), (3, 4), (1, 4), (6, 8)]  # .5, .25, .75, .25 less
    found = {name: round(average(pairs), 4) for name, average in roam.AVERAGES.items()}
    assert found == {
        "the mean over the rows": .4375, "the mean over batch 1": .625,
        "the mean over batch 32": .25, "the median": .375, "the sums": round(1 - 11 / 18, 4),
        "the sums of batch 1": round(1 - 2 / 6, 4), "the sums of batch 32": .25,
        "the mean of the ratios": round(1 - 4 / (2 + 4 / 3 + 4 + 4 / 3), 4),
        "the geometric mean": round(1 - (.5 * .75 * .25 * .75) ** .25, 4)}


def test_a_headline_beyond_the_rounding_of_the_rows_is_no_average(roam):
    assert roam.gives(0, 35.7) and not roam.gives(0, 33.0) and not roam.gives(2, 30.0)


def test_the_rows_say_headline_own_rows_and_ours(roam, tmp_path):
    rows = roam.rows(RESULTS)
    for column, theirs in (("PyTorch", "35.7 % less (its own rows: 35.7 %)"),
                           ("the best heuristic", "13.3 % less (its own rows: 13.5 %)"),
                           ("MODeL", "27.2 % less (its own rows: 32.0 %; the median, 27.8 %, "
                                     "may be meant)")):
        assert headline(rows, column).theirs == theirs
        assert float(headline(rows, column).ours.split()[0]) >= float(theirs.split()[0])
        assert headline(rows, column).why == ""
    # Heights of twice as much: half of what is left is saved, and the rows say why.
    worse = tmp_path / "RESULTS.md"
    steps = roam.table(RESULTS)
    worse.write_text("\n".join(
        [line for line in RESULTS.read_text().splitlines() if line.startswith("|")][0:2] +
        ["| " + " | ".join({**cells, "height": str(2 * float(cells["height"]))}.values()) + " |"
         for name, cells in steps.items() if not name.startswith("alexnet")]))
    found = headline(roam.rows(worse), "PyTorch")
    assert float(found.ours.split()[0]) < 0 and found.why.startswith("of 12 rows; those")
    empty = tmp_path / "empty.md"
    empty.write_text(RESULTS.read_text().split("| alexnet 1 |")[0])
    assert headline(roam.rows(empty), "MODeL").ours == ""


def test_planning_time_is_beside_roam_s_own_seconds(roam):
    found, = (each for each in roam.rows(RESULTS) if "planning time" in each.what)
    steps = roam.table(RESULTS)
    ours = sum(float(steps[f"{model} {batch}"]["s"]) for model in roam.PUBLISHED
               for batch in (1, 32))
    theirs = sum(sum(of[4]) for of in roam.PUBLISHED.values())
    assert f" {theirs / ours:.0f} x faster than ROAM" in found.ours
    assert found.theirs.startswith("53.7 x faster than MODeL")


def test_reserved_memory_and_the_second_opinion_have_tables_of_their_own(roam, tmp_path):
    results = tmp_path / "RESULTS.md"
    results.write_text(RESULTS.read_text().split("## ")[0] + """
## Reserved memory

| step | program | native reserved |
|---|---|---|
| alexnet 1 | graph | 1330.2 |
| alexnet 1 | eager | 1.0 |
| alexnet 32 | graph | 665.1 |

## A second opinion on small graphs

| kind, operators | graphs | proven by CP-SAT | firn there | worst gap, % | firn s, median | \
MODeL's program proven | its firn there | its s, median |
|---|---|---|---|---|---|---|---|---|
| step 20 | 25 | 24 | 23 | 1.500 | 0.02 | 20 of 25 | 19 | 0.40 |
| step 30 | 25 | 20 | 20 | 0.000 | 0.04 |  |  |  |
""".replace("\\\n", ""))
    *_, reserved, ilp, proven = roam.rows(results)
    # 665.1 of 1330.2 and of 665.1; of ROAM's 771 and 798.
    assert reserved.ours == "25.0 % less" and reserved.theirs.startswith("15.2 % less")
    assert "mean of 2 rows" in reserved.what and reserved.why == ""
    assert ilp.theirs == "20 optima proven, median 0.40 s"
    assert ilp.ours == "19 of 20 reached, median 0.02 s" and ilp.why
    assert proven.theirs == "44 proven" and proven.ours.startswith("43 of 44 reached")
    assert "1.500 % above at worst" in proven.ours and proven.why
    results.write_text(RESULTS.read_text().split("## ")[0])
    assert [each.ours for each in roam.rows(results)[-2:]] == ["", ""]
