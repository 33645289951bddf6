"""Sequences of allocations and frees, as `firn run --trace` wrote them (mixes/*.csv, recorded by
record_mixes.py): what call_times.py plays again."""

import array
import csv
import dataclasses
import pathlib

FOLDER = pathlib.Path(__file__).resolve().parent / "mixes"
COLUMNS = ["time_ns", "event", "device", "stream", "block", "bytes", "detail"]


@dataclasses.dataclass
class Mix:
    """Event i allocates `bytes[i]` for `handles[i]` on stream `streams[i]`; no bytes: frees it. All
    that it allocates it frees."""
    name: str
    handles: array.array
    bytes: array.array
    streams: array.array
    handles_count: int
    streams_count: int
    cut: str    # where the file ended too early: how; else empty


def read(file, device="0"):
    """ValueError, with words, where there is nothing to play."""
    mix = Mix(file.stem, array.array("I"), array.array("Q"), array.array("I"), 0, 1, "")
    live, spare, streams = {}, [], {}

    def event(handle, size, stream):
        mix.handles.append(handle)
        mix.bytes.append(size)
        mix.streams.append(stream)

    try:
        text = file.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise ValueError(f"{file}: {error.strerror}") from None
    lines = text.splitlines()
    if not lines or lines[0].split(",") != COLUMNS:
        raise ValueError(f"{file}: not what firn run --trace writes")
    if not text.endswith("\n"):
        mix.cut = f"{file.name} ends in the middle of line {len(lines)}: played up to there"
        lines.pop()
    for row in csv.reader(lines[1:]):
        if len(row) != len(COLUMNS) or row[1] not in ("alloc", "free") or row[2] != device:
            continue
        if row[1] == "free":
            handle = live.pop(row[4], None)
            if handle is not None:  # else it was allocated before the recording
                event(handle, 0, 0)
                spare.append(handle)
        elif row[4] not in live and row[5].isdigit() and row[5] != "0":
            if not spare:
                spare.append(mix.handles_count)
                mix.handles_count += 1
            live[row[4]] = spare.pop()
            event(live[row[4]], int(row[5]), streams.setdefault(row[3], len(streams)))
    for handle in live.values():
        event(handle, 0, 0)
    mix.streams_count = max(1, len(streams))
    if not mix.handles:
        raise ValueError(f"{file}: no allocation on device {device}")
    return mix
