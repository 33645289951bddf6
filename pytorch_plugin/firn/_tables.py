"""stats() as text: memory_summary() and report()."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

UNUSED = "Firn is not in use"
_WIDTH = 75
_MOST = 10  # rows of those that waited


def size(count: float) -> str:
    if count < 1024:
        return "%d B" % count
    for unit in ("KiB", "MiB", "GiB"):
        count /= 1024
        if count < 1024:
            return "%.2f %s" % (count, unit)
    return "%.2f TiB" % (count / 1024)


def _number(count: float) -> str:
    return "{:,}".format(round(count))


def _seconds(count: float) -> str:
    return "%.3f s" % count


def _share(part: float, whole: float) -> str:
    return "%.2f %%" % (100 * part / whole) if whole else "-"


def _cut(words: str, width: int, front: bool = False) -> str:
    """Cut to fit a column; `front`: for paths, whose ends tell more."""
    if len(words) <= width:
        return words
    return "..." + words[3 - width:] if front else words[:width - 3] + "..."


def _line(left: str, right: str = "", more: str = "") -> str:
    return "| %-45s | %10s | %10s |" % (_cut(left, 45, front=True), right, more)


def _rule(letter: str) -> str:
    return "|" + letter * (_WIDTH - 2) + "|"


def _title(words: str) -> str:
    return "|" + words.center(_WIDTH - 2) + "|"


def _device_table(device: dict[str, Any], stalls: dict[str, Any], abbreviated: bool) -> list[str]:
    touches, faults = device["touches"], device["faults"]
    lines = [_rule("="), _title("Firn memory summary, device ID %d" % device["device"]),
             _rule("-"), _line("Where memory is", "now", "peak"), _rule("-"),
             _line("Budget", size(device["budget_bytes"])),
             _line("Allocated", size(device["allocated_bytes"]),
                   size(device["peak_allocated_bytes"])),
             _line("On the device", size(device["device_bytes"]),
                   size(device["peak_device_bytes"])),
             _line("In host memory (hosted)", size(device["hosted_bytes"])),
             _line("On NVMe (spilled)", size(device["nvme_bytes"])),
             _rule("-"), _line("What moved", "bytes"), _rule("-"),
             _line("Spilled: copied out", size(device["spilled_bytes"])),
             _line("Left without a copy: one was elsewhere", size(device["clean_dropped_bytes"])),
             _line("Faulted: copied back on demand", size(device["faulted_bytes"])),
             _line("Prefetched: copied back ahead of use", size(device["prefetched_bytes"])),
             _line("Of both, from host memory without a read", size(device["forwarded_bytes"])),
             _line("Used in host memory, over the link", size(device["zero_copy_bytes"])),
             _rule("-"), _line("Touches", "times", "part"), _rule("-"),
             _line("All", _number(touches)),
             _line("Hits: the block was there", _number(max(touches - faults, 0)),
                   _share(max(touches - faults, 0), touches)),
             _line("Faults: the block was away", _number(faults), _share(faults, touches)),
             _line("Waits, for blocks and for room", _number(device["stalls"]),
                   _seconds(device["stall_s"])),
             _line("Evictions", _number(device["evictions"])),
             _line("Out of memory", _number(device["out_of_memory"])),
             _line("Blocks lost", _number(device["lost_blocks"]))]
    places = device["places"]
    if places["given"] or places["planned"]:
        lines += [_rule("-"), _line("Planned places", "before", "now"), _rule("-"),
                  _line("Waste beyond the requested bytes", size(places["waste_before_bytes"]),
                        size(places["waste_bytes"])),
                  _line("Frames mapped in an iteration", _number(places["maps_before"]),
                        _number(places["maps"])),
                  _line("Region, planned and mapped", size(places["region_planned_bytes"]),
                        size(places["region_bytes"])),
                  _line("Places given, and missed", _number(places["given"]),
                        _number(places["missed"]))]
    if not abbreviated:
        for title, rows in (("Waits by operator (all devices)", stalls["operators"]),
                            ("Waits by call site (all devices)", stalls["call_sites"])):
            if rows:
                lines += [_rule("-"), _line(title, "times", "seconds"), _rule("-")]
                lines += [_line(row["name"], _number(row["waits"]), _seconds(row["seconds"]))
                          for row in rows[:_MOST]]
        if device["pinned"]:
            lines += [_rule("-"), _line("Memory that stays on the device, and why", "bytes"),
                      _rule("-")]
            lines += [_line(pin["reason"], size(pin["bytes"])) for pin in device["pinned"]]
    return lines + [_rule("=")]


def summary(document: dict[str, Any], device: int | None, abbreviated: bool) -> str:
    if not document:
        return UNUSED
    lines: list[str] = []
    for each in document["devices"]:
        if device is None or each["device"] == device:
            lines += _device_table(each, document["stalls"], abbreviated)
    return "\n".join(lines) if lines else "Firn has not used device %s" % device


def _waits(stalls: dict[str, Any]) -> list[str]:
    lines: list[str] = []
    for words, rows in (("by operator", stalls["operators"]),
                        ("by line of the program", stalls["call_sites"])):
        if rows:
            lines.append("  Waits %s:" % words)
        lines += ["    %9.3f s %8s x  %s" % (row["seconds"], _number(row["waits"]), row["name"])
                  for row in rows[:_MOST]]
    if stalls["operators"] and not stalls["call_sites"]:
        lines.append("  (Call firn.call_sites() before the work to see lines of the program too.)")
    return lines


def _device_report(device: dict[str, Any]) -> list[str]:
    lines = ["Device %d: budget %s; peaks: %s on the device, %s allocated." % (
        device["device"], size(device["budget_bytes"]), size(device["peak_device_bytes"]),
        size(device["peak_allocated_bytes"]))]
    if not device["watching"]:
        lines.append("  Firn did not watch operators: memory never came near the budget "
                     "(firn_watch).")
    if device["evictions"] == 0 and device["spilled_bytes"] == 0:
        lines.append("  Nothing had to leave.")
    else:
        lines.append("  Out: %s copied out, %s left because a copy was elsewhere." % (
            size(device["spilled_bytes"]), size(device["clean_dropped_bytes"])))
        lines.append("  Back: %s ahead of use, %s on demand (of both, %s from host "
                     "memory)." % (size(device["prefetched_bytes"]), size(device["faulted_bytes"]),
                                   size(device["forwarded_bytes"])))
        lines.append("  Now away: %s in host memory, %s on NVMe." % (
            size(device["hosted_bytes"]), size(device["nvme_bytes"])))
        lines.append("  The program's iteration is %s (firn_policy)." % (
            "known" if device["period_found"] else "not known: blocks leave by age"))
    if device["zero_copy_bytes"]:
        lines.append("  Operators used %s in host memory, over the link: their own tensors exceed "
                     "the budget." % size(device["zero_copy_bytes"]))
    lines.append("  Waited %s in %s waits." % (_seconds(device["stall_s"]),
                                               _number(device["stalls"])))
    if device["pinned"]:
        lines.append("  Stays on the device:")
        lines += ["    %12s  %s" % (size(pin["bytes"]), pin["reason"]) for pin in device["pinned"]]
    lines += ["  Unseen: " + words for words in device["unseen"]]
    if device["lost_blocks"]:
        lines.append("  LOST: %s blocks; their data cannot be read back." % _number(
            device["lost_blocks"]))
    lines += ["  Trouble: " + words for words in device["trouble"]]
    return lines


def report(document: dict[str, Any]) -> str:
    if not document:
        return UNUSED
    lines = ["Firn, process %d" % document["pid"], ""]
    for device in document["devices"]:
        lines += _device_report(device) + [""]
    waits = _waits(document["stalls"])
    if waits:
        lines += ["Waits for memory, on all devices:"] + waits + [""]
    store = document["store"]
    if store["dirs"]:
        lines.append("Spill files (%s) in %s: %s written, %s read." % (
            store["kind"], ", ".join(store["dirs"]), size(store["written_bytes"]),
            size(store["read_bytes"])))
        lines += ["  Trouble: " + words for words in store["trouble"]]
    else:
        lines.append("No spill files: host memory is the only tier (firn_dir).")
    return "\n".join(lines)
