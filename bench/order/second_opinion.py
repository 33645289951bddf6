#!/usr/bin/env python3
"""A second opinion on `firn order`: exact solvers from PyPI (exact.py) on graphs too large to try
every order: second_opinion.py [--firn FIRN] [--graphs N] [--operators 20,30,...] [--seconds S]
[--ilp-operators N] [--captured PREFIX...]

For each kind of graphs.py and each size, N graphs from seeds: Firn's peak beside the least that
CP-SAT proves or finds within S seconds, and MODeL's integer program up to --ilp-operators. Where
Firn's layout is higher than the peak, the least height for its own order is asked for as well.
OR-Tools is installed below build/peers. The status is 1 where Firn is below what was proven, or
above a bound that it calls its optimum: one of them is wrong.
"""

import argparse
import importlib.util
import json
import pathlib
import statistics
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
import exact  # noqa: E402
import graphs  # noqa: E402

# (Another module that check.py reads has its name, too.)
spec = importlib.util.spec_from_file_location("order_check", HERE / "check.py")
check = importlib.util.module_from_spec(spec)
spec.loader.exec_module(check)

ROOT = HERE.parents[1]
PACKAGES = ("ortools==9.15.6755", "absl-py", "immutabledict", "protobuf", "pandas",
            "python-dateutil", "six")
PEER = ROOT / "build" / "peers" / "ortools-9.15.6755"
ILP_EXACT = 1e-6      # of the peak: HiGHS's tolerances


def install():
    if not (PEER / "installed").exists():
        subprocess.run([sys.executable, "-m", "pip", "install", "--disable-pip-version-check", "-q",
                        "--no-deps", "--retries", "1", "--timeout", "30", "--upgrade", "--target",
                        str(PEER), *PACKAGES], check=True)
        (PEER / "installed").write_text("OR-Tools\n")
    sys.path.append(str(PEER))


def planned(firn, prefix):
    """What `firn order` says, once checked, and the graph."""
    out = f"{prefix}.out"
    done = subprocess.run([firn, "order", prefix, "-o", out, "--json"], check=True,
                          capture_output=True, text=True)
    found = json.loads(done.stdout)
    if check.check(prefix, out) != (found["peak_program_order"], found["peak"], found["height"]):
        raise SystemExit(f"second_opinion.py: {prefix}: {found} is not what check.py finds")
    return found, check.Graph(prefix)


def wrong(found, answer, exactly=0.0):
    """Why one of both is wrong, or nothing."""
    slack = exactly * found["peak"]
    if found["peak"] < answer.bound - slack:
        return f"firn's peak {found['peak']} is below the proven bound {answer.bound}"
    if answer.found and answer.value < found["bound"] - slack:
        return f"the solver's {answer.value} is below firn's bound {found['bound']}"
    return ""


class Line:
    """What is known of some graphs."""

    def __init__(self):
        self.graphs = self.proven = self.equal = self.best = self.either = 0
        self.gap, self.over, self.heights_proven = 0.0, 0.0, 0
        self.ilp_asked = self.ilp_proven = self.ilp_equal = 0
        self.seconds, self.cp_seconds, self.ilp_seconds = [], [], []

    def peak(self, found, answer):
        self.graphs += 1
        self.seconds.append(found["seconds"])
        self.cp_seconds.append(answer.seconds)
        self.best += not answer.found or found["peak"] <= answer.value
        self.either += found["peak"] == max(found["bound"], answer.bound)
        if answer.proven:
            self.proven += 1
            self.equal += found["peak"] == answer.value
            self.gap = max(self.gap, found["peak"] / answer.value - 1)

    def ilp(self, found, answer):
        self.ilp_asked += 1
        self.ilp_seconds.append(answer.seconds)
        if answer.proven:
            self.ilp_proven += 1
            self.ilp_equal += found["peak"] <= answer.value * (1 + ILP_EXACT)

    def height(self, found, least):
        """`least`: None where the height is the peak."""
        if least is None or (least.proven and least.value == found["height"]):
            self.heights_proven += 1
        elif least.found:
            self.over = max(self.over, found["height"] / least.value - 1)

    def cells(self):
        ilp = [f"{self.ilp_proven} of {self.ilp_asked}", f"{self.ilp_equal}",
               f"{statistics.median(self.ilp_seconds):.2f}"] if self.ilp_asked else ["", "", ""]
        return [self.graphs, self.proven, self.equal, f"{100 * self.gap:.3f}", self.either,
                self.best, self.heights_proven, f"{100 * self.over:.3f}",
                f"{statistics.median(self.seconds):.3f}", f"{max(self.seconds):.2f}",
                f"{statistics.median(self.cp_seconds):.2f}", f"{max(self.cp_seconds):.1f}", *ilp]


HEAD = ("graphs", "proven by CP-SAT", "firn there", "worst gap, %", "firn's proven by either",
        "firn at or below its best", "height least for the order", "worst above it, %",
        "firn s, median", "worst",
        "CP-SAT s, median", "worst", "MODeL's program proven", "its firn there", "its s, median")


def ask(line, firn, prefix, seconds, ilp):
    found, graph = planned(firn, prefix)
    problem = exact.Problem(graph)
    answer = exact.least_peak(problem, seconds)
    trouble = wrong(found, answer)
    line.peak(found, answer)
    least = None
    if found["height"] > found["peak"]:
        order = [row["op"] for row in check.rows_of(f"{prefix}.out.order.csv")]
        least = exact.least_height([(begin, end + 1, graph.storages[storage][0])
                                    for storage, (begin, end) in graph.lives(order).items()
                                    if graph.storages[storage][0]], seconds)
        if found["height"] < least.bound:
            trouble = trouble or f"firn's height {found['height']} is below {least.bound}"
    line.height(found, least)
    if ilp:
        answer = exact.model_ilp(problem, seconds)
        trouble = trouble or wrong(found, answer, ILP_EXACT)
        line.ilp(found, answer)
    return trouble


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--firn", default=str(ROOT / ".venv" / "bin" / "firn"))
    parser.add_argument("--graphs", type=int, default=20)
    parser.add_argument("--operators", default="20,30,40,50,60")
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--ilp-operators", type=int, default=20)
    parser.add_argument("--captured", nargs="*", default=[], help="graphs of bench/roam/capture.py")
    given = parser.parse_args()
    install()
    troubles = []

    def said(title, line):
        print("| " + " | ".join(str(cell) for cell in (title, *line.cells())) + " |", flush=True)

    def one(line, prefix, ilp, name):
        trouble = ask(line, given.firn, prefix, given.seconds, ilp)
        if trouble:
            troubles.append(f"{name}: {trouble}")

    print("| kind, operators | " + " | ".join(HEAD) + " |")
    print("|---|" + "---|" * len(HEAD))
    sizes = [int(each) for each in given.operators.split(",") if given.graphs]
    with tempfile.TemporaryDirectory() as scratch:
        for kind in ("step", "random"):
            for operators in sizes:
                line, prefix = Line(), f"{scratch}/{kind}-{operators}"
                for seed in range(given.graphs):
                    graphs.write(prefix, kind, operators, seed)
                    one(line, prefix, operators <= given.ilp_operators,
                        f"{kind} {operators} {seed}")
                said(f"{kind} {operators}", line)
        for prefix in given.captured:
            line = Line()
            one(line, prefix, False, prefix)
            said(pathlib.Path(prefix).name, line)
    if troubles:
        sys.exit("second_opinion.py: " + "; ".join(troubles))


if __name__ == "__main__":
    main()
