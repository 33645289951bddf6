"""Figures of bench/jobs as lines on the terminal, as they are found."""

from __future__ import annotations

import sys
from typing import Any, Callable

import charts


def show_curve(result: dict[str, Any]) -> None:
    if "error" in result:
        print(f"{result['job']}: {result['error']}", flush=True)
        return
    print(f"\n{result['job']} on {result['words']}: {result['kernels']} kernels, "
          f"{result['seconds']:.3f} s ({result['times']}), {result['peak_bytes'] / 2**30:.1f} GiB "
          f"when all is in memory ({result['persistent_bytes'] / 2**30:.1f} persistent)")
    columns = [each for each in (*charts.COLUMNS, *charts.BOUNDS)
               if any(each in row for row in result["budgets"])]
    print("  budget  " + "".join(f"{each:>13}" for each in (*columns, "part of it")))
    for row in result["budgets"]:
        cells = [charts.part(result, row, each) for each in columns]
        cells.append(charts.reached(result, row))
        print(f"  {row['percent']:>4} %  " +
              "".join(f"{'-' if each is None else format(each, '.3f'):>13}" for each in cells))
    sys.stdout.flush()


def show_depth(result: dict[str, Any]) -> None:
    for row in result["rows"]:
        found = row["lifetime"]
        if "steady_s" not in found:
            print(f"{result['job']}, {row['layers']} layers: {found['error']}", flush=True)
            continue
        parts = ", ".join(f"{name} {found['seconds'] / row[name]['steady_s']:.3f}"
                          for name in ("lifetime", "remake", "both", "bound", "bound_remake")
                          if "steady_s" in row.get(name, {}))
        print(f"{result['job']}, {row['layers']:>3} layers: "
              f"{found['peak_bytes'] / 2**30:.1f} GiB in {result['budget_bytes'] / 2**30:.0f}: "
              f"{parts}", flush=True)


def show_teraio(row: dict[str, Any]) -> None:
    print(f"{row['job']} on {row['machine']}, {row['batch']} x {row['length']}: " + (
        row.get("error") or ", ".join(
        [f"{row['peak_bytes'] / 2**30:.0f} GiB in {row['budget_bytes'] / 2**30:.0f}, "
         f"{row['seconds']:.2f} s", *(
             f"{name} {row['seconds'] / row[name]['steady_s']:.3f}" if "steady_s" in row[name] else
             f"{name}: {row[name]['error']}"
             for name in ("lifetime", "remake", "greedy", "bound", "bound_remake"))])),
          flush=True)


def show_teraio_way(row: dict[str, Any]) -> None:
    print(f"{row['job']} on {row['machine']}, {row['batch']} x {row['length']}, {row['way']} in "
          f"{row['micro_batches']}: " + (row.get("error") or ", ".join(
              [f"{row['peak_bytes'] / 2**30:.0f} GiB in {row['budget_bytes'] / 2**30:.0f}, "
               f"{row['seconds']:.2f} s", *(
                   f"{name} {row['seconds'] / row[name]['steady_s']:.3f}"
                   if "steady_s" in row[name] else f"{name}: {row[name]['error']}"
                   for name in ("lifetime", "greedy"))])), flush=True)


def show_teraio_bandwidth(row: dict[str, Any]) -> None:
    print(f"{row['job']} on {row['machine']}, {row['batch']} x {row['length']}, "
          f"{row['write_gbs']:g} GB/s of SSDs: " + (row.get("error") or ", ".join(
              f"{name} {row['seconds'] / row[name]['steady_s']:.3f}"
              if "steady_s" in row[name] else f"{name}: {row[name]['error']}"
              for name in ("lifetime", "bound", "remake", "bound_remake"))), flush=True)


def show_ssdtrain(row: dict[str, Any]) -> None:
    print(f"{row['job']}: " + (row.get("error") or
          f"{row['activations_bytes'] / 2**30:.1f} GiB of activations, down by " + ", ".join(
              f"{100 * row[name]['down']:.1f} % ({name} moved; any mover at most "
              f"{100 * row[name + '_bound']['down']:.1f}; made again "
              f"{100 * row[name + '_remake']['down']:.1f}, at most "
              f"{100 * row[name + '_bound_remake']['down']:.1f})" for name in (
                  "activations", "all"))), flush=True)


def show_orders(row: dict[str, Any]) -> None:
    if "error" in row:
        print(f"{row['job']}: {row['error']}", flush=True)
        return
    print(f"{row['job']} on {row['machine']}, {row['peak_bytes'] / 2**30:.1f} GiB, "
          f"{row['seconds']:.3f} s: parts of that speed")
    for order in row["orders"]:
        print(f"  {order['order']:>10}  " + (order.get("error") or
              f"{row['seconds'] / order['seconds']:.3f} unlimited; " + ", ".join(
                  f"{row['seconds'] / each['steady_s']:.3f} at {each['percent']} %"
                  if "steady_s" in each else f"{each['percent']} %: {each['error']}"
                  for each in order["budgets"])))
    sys.stdout.flush()


def show_batches(row: dict[str, Any]) -> None:
    print(f"{row['job']} on {row['machine']}: {row['native_batch']} sequences fit")
    for each in row["rows"]:
        loop, relay = each["loop"], each["relay"]
        print(f"  batch {each['batch']}: a loop of {each['loop_part']} takes "
              f"{loop['peak_bytes'] / 2**30:.2f} GiB, {each['batch'] / loop['seconds']:.1f} "
              "sequences a second; relay " + (relay.get("error") or
              f"{relay['budget_bytes'] / 2**30:.2f} GiB, "
              f"{each['batch'] / relay['steady_s']:.1f}"))
    sys.stdout.flush()


def show_depths(row: dict[str, Any]) -> None:
    print(f"{row['job']}, {row['layers']} layers, batch {row['batch']}" + (
        f": {row['error']}" if "error" in row else
        f", {row['peak_bytes'] / 2**30:.1f} GiB in all; relay in "
        f"{row['budget_bytes'] / 2**30:.2f} GiB"))
    for name, words in (("waiting", "waiting for each kernel"),
                        ("ahead", f"{row.get('ahead_kernels')} kernels ahead")):
        ran, least = row.get(name, {}), row.get("least_" + name, {})
        if ran:
            print(f"  {words}: " + (ran.get("error") or
                  f"{row['seconds'] / ran['steady_s']:.4f}") + (
                  f"; {row['seconds'] / least['steady_s']:.4f} in "
                  f"{least['budget_bytes'] / 2**30:.2f} GiB" if "steady_s" in least else ""))
    sys.stdout.flush()


def show_many(row: dict[str, Any]) -> None:
    print(f"{row['job']} on {row['words']}: " + (row.get("error") or
          f"{row['persistent_bytes'] / 2**30:.0f} GiB of parameters and states, in "
          f"{row['budget_bytes'] / 2**30:.0f} GiB at {row['seconds'] / row['steady_s']:.3f} of "
          f"{row['seconds']:.0f} s a step"), flush=True)


def show_lifetimes(row: dict[str, Any]) -> None:
    print(f"{row['job']} on {row['machine']}, {row['batch']} x {row['length']}: " + (
        row.get("error") or
        f"{100 * row['active_share_mean']:.2f} % of the footprint active on average, "
        f"{100 * row['tensors_inactive_over_10ms_share']:.1f} % of the tensors idle for over "
        "10 ms"), flush=True)


def show_rok(row: dict[str, Any]) -> None:
    print(f"{row['job']} on {row['machine']}" + (f": {row['error']}" if "error" in row else ""))
    for each in row["points"]:
        print(f"  batch {each['batch']:>3} {each['way']:>10}: {each['bytes'] / 2**30:.2f} GiB of "
              f"activations, {each['sequences_s']:.2f} sequences a second")
    sys.stdout.flush()


SHOWN: dict[str, Callable[[dict[str, Any]], None]] = {
    "jobs": show_curve, "depth": show_depth, "teraio": show_teraio, "ssdtrain": show_ssdtrain,
    "teraio_ways": show_teraio_way, "rok": show_rok,
    "lifetimes": show_lifetimes, "teraio_bandwidth": show_teraio_bandwidth,
    "l2l": show_orders, "l2l_batches": show_batches, "l2l_depths": show_depths,
    "l2l_many": show_many, "l2l_host": show_orders}
