"""`firn simulate --lifetimes` beside a computation that asks of every tensor at every kernel, on
random traces."""

import json
import random

import pytest
from firn_command import ROOT, refused

LAYERS = str(ROOT / "tests" / "data" / "layers")
BOUNDS_NS = [10**4, 10**5, 10**6, 10**7, 10**8, 10**9]
LONG_NS = 10**7


def write(prefix, sizes, persistent, kernels):
    prefix.with_name(prefix.name + ".tensors.csv").write_text("tensor,bytes,kind\n" + "".join(
        f"{each},{size},{'persistent' if each in persistent else 'transient'}\n"
        for each, size in sizes.items()))
    prefix.with_name(prefix.name + ".kernels.csv").write_text(
        "kernel,name,duration_ns,inputs,outputs\n" + "".join(
            f"{at},k,{ns},{' '.join(map(str, ins))},{' '.join(map(str, outs))}\n"
            for at, (ns, ins, outs) in enumerate(kernels)))


def random_program(seed):
    draw = random.Random(seed)
    sizes = {each * draw.choice([1, 3]) + 1000 * each: draw.randrange(1, 10**9)
             for each in range(draw.randrange(2, 14))}
    tensors = list(sizes)
    persistent = {each for each in tensors if draw.random() < 0.5}
    kernels = [(draw.choice([1, 30, 7000, 40_000, 10**6, 3 * 10**6, 10**7, 3 * 10**8, 2 * 10**9]),
                *(draw.sample(tensors, draw.randrange(min(4, len(tensors)))) for _ in range(2)))
               for _ in range(draw.randrange(1, 25))]
    return sizes, persistent, kernels


def by_hand(sizes, persistent, kernels):
    """Of each tensor, instant by instant, over three iterations; the middle one counts."""
    period = len(kernels)
    used = {each: [at for at, (_, ins, outs) in enumerate(kernels) if each in (*ins, *outs)]
            for each in sizes}
    begins = [0]
    for iteration in range(3):
        for ns, _, _ in kernels:
            begins.append(begins[-1] + ns)
    total = begins[period]
    kinds, long, periods = {}, set(), []
    # idle[tensor][kernel]: the class of the period in which the kernel finds it; -1: active
    idle = {}
    for each, uses in used.items():
        if each in persistent:
            first_writes = uses and each in kernels[uses[0]][2]
            kinds[each] = "states" if first_writes else "weights"
            everywhere = [at + period * i for i in range(3) for at in uses]
        elif uses:
            kinds[each] = "made"
            everywhere = [at + period for at in uses]
        else:
            continue
        idle[each] = dict.fromkeys((at for at in range(period, 2 * period)), None)
        for at in uses:
            idle[each][at + period] = -1
        gaps = [(before + 1, after) for before, after in zip(everywhere, everywhere[1:])
                if after > before + 1]
        if each in persistent and not uses:
            gaps = [(period, 2 * period)]
        for begin, end in gaps:
            length = begins[end] - begins[begin]
            at = sum(length > bound for bound in BOUNDS_NS)
            for kernel in range(max(begin, period), min(end, 2 * period)):
                idle[each][kernel] = at
            # One that reaches over the end belongs to the iteration in which it ends.
            if period <= end - (not uses) < 2 * period:
                periods.append((each, at))
                if length > LONG_NS:
                    long.add(each)
    result = {"active": 0, "share": 0, "footprint": 0, "peaks": [0, 0, 0], "inactive": {},
              "kinds": kinds, "long": long, "periods": periods, "times": []}
    for at in range(period, 2 * period):
        ns = begins[at + 1] - begins[at]
        active = sum(sizes[each] for each in idle if idle[each][at] == -1)
        footprint = active + sum(sizes[each] for each in idle if idle[each][at] not in (-1, None))
        share = active / footprint if footprint else 0
        result["active"] += active * ns / total
        result["footprint"] += footprint * ns / total
        result["share"] += share * ns / total
        result["peaks"] = [max(pair) for pair in zip(result["peaks"], (active, footprint, share))]
        levels = [active] + [0] * 7
        for each in idle:
            if idle[each][at] not in (-1, None):
                key = kinds[each], idle[each][at]
                result["inactive"][key] = \
                    result["inactive"].get(key, 0) + sizes[each] * ns / total
                levels[1 + idle[each][at]] += sizes[each]
        result["times"].append((begins[at] - total, begins[at + 1] - total, levels))
    return result


def lifetimes(firn, prefix):
    done = firn("simulate", str(prefix), "--lifetimes", "--json")
    assert done.returncode == 0 and done.stderr == "", done.stderr
    return json.loads(done.stdout)


def near(value):
    return pytest.approx(value, rel=1e-9, abs=1e-6)


@pytest.mark.parametrize("first", range(0, 200, 20))
def test_random_traces(firn, tmp_path, first):
    for seed in range(first, first + 20):
        program = random_program(seed)
        write(tmp_path / "t", *program)
        found, wanted = lifetimes(firn, tmp_path / "t"), by_hand(*program)
        told = f"seed {seed}: {program}"
        assert found["active_bytes_mean"] == near(wanted["active"]), told
        assert found["footprint_bytes_mean"] == near(wanted["footprint"]), told
        assert found["active_share_mean"] == near(wanted["share"]), told
        assert [found["active_bytes_peak"], found["footprint_bytes_peak"],
                found["active_share_peak"]] == near(wanted["peaks"]), told
        assert found["tensors"] == len(wanted["kinds"]), told
        assert found["tensors_inactive_over_10ms"] == len(wanted["long"]), told
        assert found["periods"] == len(wanted["periods"]), told
        assert found["periods_over_10ms"] == sum(at > 3 for _, at in wanted["periods"]), told
        for name, kind in found["by_kind"].items():
            of = [each for each, its in wanted["kinds"].items() if its == name]
            assert kind["tensors"] == len(of), told
            assert kind["bytes"] == sum(program[0][each] for each in of), told
            assert kind["tensors_inactive_over_10ms"] == len(wanted["long"] & set(of)), told
            for at, length in enumerate(kind["by_length"]):
                assert length["bytes_mean"] == near(wanted["inactive"].get((name, at), 0)), told
                assert length["periods"] == sum(
                    each in of and its == at for each, its in wanted["periods"]), told


def test_means_over_parts_of_the_iteration(firn, tmp_path):
    for seed in range(30):
        program = random_program(seed)
        write(tmp_path / "t", *program)
        found, wanted = lifetimes(firn, tmp_path / "t"), by_hand(*program)
        rows = found["over_time"]
        width = found["seconds"] * 1e9 / len(rows)
        for at in random.Random(seed).sample(range(len(rows)), 40):
            begin, end = at * width, (at + 1) * width
            levels = [sum(max(0.0, min(end, to) - max(begin, since)) * each[part]
                          for since, to, each in wanted["times"]) / width for part in range(8)]
            assert rows[at][0] == near(begin / 1e9)
            assert rows[at][1:] == pytest.approx(levels, rel=1e-6, abs=1e-3), f"seed {seed}, {at}"


def test_by_hand(firn, tmp_path):
    """A weight is used at both ends of 30 ms, a state in the end, an activation is kept for 20 ms."""
    write(tmp_path / "t", {0: 100, 1: 40, 2: 60}, {0, 1},
          [(5 * 10**6, [0], [2]), (20 * 10**6, [], []), (5 * 10**6, [2, 0, 1], [0, 1])])
    found = lifetimes(firn, tmp_path / "t")
    assert found["seconds"] == pytest.approx(0.03)
    # Active: 160 of 200 bytes, none of 200, all.
    assert found["active_share_mean"] == pytest.approx((5 * .8 + 5 * 1) / 30)
    assert found["tensors_inactive_over_10ms_share"] == 1
    kinds = found["by_kind"]
    assert [kinds[each]["bytes"] for each in ("weights", "states", "made")] == [100, 40, 60]
    longest = [kinds[each]["by_length"][4]["bytes_mean"] for each in kinds]
    assert longest == pytest.approx([100 * 20 / 30, 40 * 25 / 30, 60 * 20 / 30])


def test_the_text_has_the_documents_figures(firn):
    found = lifetimes(firn, LAYERS)
    done = firn("simulate", LAYERS, "--lifetimes")
    assert done.returncode == 0 and len(done.stdout.splitlines()) < 18
    assert f"{100 * found['active_share_mean']:.3g} % of it on average" in done.stdout
    assert f"of {found['tensors']} tensors" in done.stdout
    assert all(len(line) <= 110 for line in done.stdout.splitlines())


def test_the_plot(firn, tmp_path):
    out = tmp_path / "out.png"
    done = firn("simulate", LAYERS, "--lifetimes", "--plot", str(out))
    if done.returncode == 2 and "matplotlib" in done.stderr:
        pytest.skip(done.stderr.strip())
    assert done.returncode == 0, done.stderr
    assert out.read_bytes().startswith(b"\x89PNG") and out.stat().st_size > 10_000


@pytest.mark.parametrize("words", [("--gpu-memory", "1GiB"), ("--ssd-endurance", "1TB"),
                                   ("--sweep", "budget=1GiB:2GiB:1GiB"), ("--timeline", "x"),
                                   ("--host", "1GiB")])
def test_a_machine_is_refused(firn, words):
    refused(firn("simulate", LAYERS, "--lifetimes", *words), "--lifetimes", words[0])
