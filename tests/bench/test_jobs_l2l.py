"""bench/jobs: figures of L2L's, TERAIO's and SSDTrain's cases, on a runner whose steps are reckoned
by hand."""

import pathlib
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "bench/jobs"))
GIB = 1 << 30


class MadeRunner:
    """A step takes 1 s for each 8 sequences, 4/3 of it recomputed, and twice as long below half of
    its peak, or a quarter with kernels enqueued ahead; the peak is 1 GiB and another one for each
    sequence of a part, a quarter of that recomputed or relayed."""

    def __init__(self):
        self.recorded, self.ahead = [], []

    def record(self, job, gpu, way="plain", **changed):
        import runs
        self.recorded.append((job, way, changed))
        batch, parts = changed.get("batch", 8), changed.get("micro_batches", 1)
        if batch % parts:
            return runs.Recorded(error="no such parts")
        again = way in ("recompute", "relay")
        peak = GIB + batch // parts * GIB // (4 if again else 1)
        return runs.Recorded(f"{peak} {batch / 8 * (4 / 3 if again else 1)}", {
            "kernels": 10, "seconds": batch / 8 * (4 / 3 if again else 1), "peak_bytes": peak,
            "persistent_bytes": GIB, "largest_kernel_bytes": GIB // 8})

    def simulate(self, prefix, budget, machine, policy="lifetime", remake=False, run_ahead=0):
        del machine, policy
        self.ahead.append(run_ahead)
        peak, seconds = (float(each) for each in prefix.split())
        if budget < peak / (8 if remake else 4 if run_ahead else 2):
            return {"steady_s": 2 * seconds, "bytes_written": 7}
        return {"steady_s": seconds, "bytes_written": 7}

    def remake(self, prefix, budget, machine):
        return self.simulate(prefix, budget, machine, remake=True)


class BoundedRunner(MadeRunner):
    def bound(self, prefix, budget, machine):
        del prefix, budget
        return {"steady_s": machine.ssds}

    bound_remake = bound


def test_orders_are_parts_of_the_plain_speed():
    import gpus
    import l2l
    row = l2l.orders(MadeRunner(), "gpt-8192", gpus.MACHINES["h200"], (50, 10))
    assert row["seconds"] == 1 and row["peak_bytes"] == 9 * GIB
    orders = {each["order"]: each for each in row["orders"]}
    assert list(orders) == list(l2l.ORDERS)

    def steps(name):
        return [each["steady_s"] for each in orders[name]["budgets"]]
    assert steps("plain") == steps("eager") == [1, 2]
    assert steps("eager-remake") == [1, 2]      # 10 % is below its eighth
    assert steps("relay-8") == pytest.approx([4 / 3, 4 / 3])
    assert orders["relay-8"]["budgets"][1]["budget_bytes"] == 9 * GIB * 10 // 100


def test_a_batch_without_such_parts_has_no_order():
    import gpus
    import l2l

    class Odd(MadeRunner):
        def record(self, job, gpu, way="plain", **changed):
            return super().record(job, gpu, way, **{"batch": 4, **changed})
    row = l2l.orders(Odd(), "llama3-8b", gpus.MACHINES["h200"], (50,))
    orders = {each["order"]: each for each in row["orders"]}
    assert orders["relay-8"]["error"] == "no such parts" and "error" not in orders["relay-4"]


def test_the_least_budget_of_a_relay():
    import gpus
    import l2l
    machine, runner = gpus.MACHINES["v100"], MadeRunner()
    found = runner.record("bert-large", "v100", "relay", batch=32, micro_batches=4)   # 3 GiB
    least = l2l.least(runner, found, machine, steps=12)
    assert least["budget_bytes"] == pytest.approx(1.5 * GIB, rel=1e-2)
    assert least["steady_s"] == found.summary["seconds"]


def test_batches_beside_the_largest_loop_that_fits():
    import gpus
    import l2l
    runner = MadeRunner()
    found = l2l.batches(runner, gpus.MACHINES["v100"], (2, 64))
    assert found["native_batch"] == 14          # 15 GiB of the GPU
    few, many = found["rows"]
    assert few["loop_part"] == 2 and many["loop_part"] == 8
    assert many["loop"]["peak_bytes"] == 9 * GIB and many["relay_part"] == l2l.PART
    assert many["relay"]["budget_bytes"] < many["loop"]["peak_bytes"]
    assert ("bert-large", "relay", {"batch": 64, "length": 512, "micro_batches": 4}) in \
        runner.recorded


def test_depths_share_a_batch_and_a_budget():
    import gpus
    import l2l
    runner = MadeRunner()
    found = [l2l.depth(runner, gpus.MACHINES["v100"], layers) for layers in (12, 48, 192)]
    assert [each["layers"] for each in found] == [12, 48, 192]
    assert {each["budget_bytes"] for each in found} == {l2l.DEEP_BUDGET}
    assert runner.ahead[:2] == [0, 0] and {0, l2l.AHEAD} == set(runner.ahead)
    few, deeper, deepest = found
    # The peak is 5 GiB: the budget for all depths is below a half of it.
    assert few["waiting"]["steady_s"] == 2 * few["seconds"] > few["ahead"]["steady_s"]
    assert few["least_waiting"]["budget_bytes"] == deeper["least_waiting"]["budget_bytes"] > \
        few["least_ahead"]["budget_bytes"]
    assert "least_waiting" not in deepest and "least_ahead" not in deepest
    assert [changed["layers"] for _, way, changed in runner.recorded if way == "relay"] == \
        [12, 48, 192]


def test_many_parameters_have_the_paper_s_host_memory():
    import gpus
    import l2l
    runner = MadeRunner()
    row = l2l.many_parameters(runner, gpus.MACHINES["v100"])
    assert "512 GiB of host memory" in row["words"] and row["budget_bytes"] == 15 * GIB
    assert runner.recorded == [("gpt-50b", "relay", {"micro_batches": l2l.MANY[1]})]
    assert row["steady_s"] >= row["seconds"]


def test_an_optimizer_at_the_host_is_beside_the_same_on_the_device():
    import l2l
    runner = MadeRunner()
    row = l2l.hosts(runner, l2l.HostCase("gpt-8192", "h200", 2, (50, 9 * GIB), ("2g", "5g")))
    assert [each["order"] for each in row["orders"]] == ["plain", "fp32", "host 2g", "host 5g"]
    assert [each["percent"] for each in row["orders"][0]["budgets"]] == [50, 100]
    assert row["seconds"] == 1 and row["orders"][3]["budgets"][1]["steady_s"] == 4 / 3
    assert runner.recorded[-1] == ("gpt-8192", "relay", {
        "micro_batches": 2, "optimizer": "host", "cpu": "5g"})
    many = l2l.hosts(runner, l2l.HOST_CASES[-1])
    assert "512 GiB of host memory" in many["words"] and len(many["orders"]) == 1


def test_the_curve_has_four_ways_for_each_batch(monkeypatch):
    import published
    runner = MadeRunner()
    monkeypatch.setattr(published, "made_alone", lambda runner, prefix: (
        prefix, {"peak_bytes": float(prefix.split()[0]), "largest_kernel_bytes": 1000,
                 "seconds": float(prefix.split()[1])}))
    found = published.rok(runner, "gpt-8192-tp2", (8, 16))
    points = {(each["batch"], each["way"]): each for each in found["points"]}
    assert len(points) == len(found["points"]) == 8
    keep, offload = points[16, "keep"], points[16, "offload"]
    assert keep["sequences_s"] == offload["sequences_s"] == 8
    assert offload["bytes"] == pytest.approx(keep["bytes"] / 2, rel=0.05)
    assert points[16, "remake"]["bytes"] == pytest.approx(keep["bytes"] / 8, rel=0.15)
    assert points[16, "recompute"]["sequences_s"] == pytest.approx(6)


def test_teraio_s_steps_in_other_ways():
    import published
    row = published.teraio_way(MadeRunner(), "llama3-8b-tp2", "teraio", 8, "recompute", 1)
    assert row["seconds"] == pytest.approx(4 / 3)
    assert row["lifetime"]["steady_s"] == row["seconds"]       # of the same program's speed
    assert (row["way"], row["micro_batches"], row["length"]) == ("recompute", 1, 2048)
    odd = published.teraio_way(MadeRunner(), "llama3-8b-tp2", "teraio", 8, "plain", 3)
    assert odd["error"] == "no such parts"


def test_teraio_s_step_with_more_ssds():
    import published
    rows = [published.teraio_bandwidth(BoundedRunner(), "teraio", ssds)
            for ssds in published.TERAIO_SSDS]
    assert [each["write_gbs"] for each in rows] == [8, 16, 24, 32, 48, 64]
    assert {each["budget_bytes"] for each in rows} == {79 << 30}
    assert "2 SSDs" in rows[0]["words"] and "16 SSDs" in rows[-1]["words"]
    assert rows[0]["bound"] == {"steady_s": 2} and rows[0]["seconds"] == 1
